"""Engines that share the experts of a model that reads images: each encodes its images itself, and has the whole tower."""

from tests.pictures import picture
from tests.vision_files import save_vision_model
from tests.vision_reference import VisionReference
from tests.worker_svc.conftest import Driver
from tests.worker_svc.media.image_prompts import image_prompt
from tests.worker_svc.ranks.test_shared_experts import open_engines


def test_an_engine_with_some_of_the_experts_gives_the_tokens_of_the_whole_model(tmp_path):
    directory = tmp_path / "model"
    save_vision_model(directory, "qwen3_vl_moe")
    reference = VisionReference(directory)
    prompt = image_prompt(reference, [picture(60, 40)])

    with open_engines(tmp_path, directory, 2) as (engine, _):
        worker = engine.worker
        stream = engine.compute.run(worker.begin_stream, 1)
        worker.encode(stream, prompt.items[0], 0)
        driver = Driver(engine)
        driver.add(0, prompt.token_ids, media=prompt.spans)
        tokens = driver.generate(3)[0][:3]

    assert tokens == reference.generate(prompt.prepared, 3).token_ids
