"""LLM, LLMEngine and AsyncLLM with images: every form of a prompt has the tokens of transformers' model."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from tests.one_process_llm import services_in_process
from tests.pictures import picture
from tests.vision_files import save_vision_model
from tests.vision_reference import VisionReference
from tetrad import LLM, AsyncLLM, BeamSearchParams, EngineArgs, SamplingParams
from tetrad.services.errors import InvalidRequest

PARAMS = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
# All tokens that follow the first image are the tokenizer's: the model has more.
DATA, OTHER = picture(90, 60, seed=9), picture(40, 70, seed=2)
PIL = Image.open(io.BytesIO(DATA))
TEXT = "user: <image>What?"
MESSAGES = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("llava") / "model"
    save_vision_model(path, "llava")
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    path = tmp_path_factory.mktemp("files")
    (path / "a.png").write_bytes(DATA)
    return path


@pytest.fixture(scope="module")
def reference(directory):
    return VisionReference(directory)


@pytest.fixture(scope="module")
def llm(directory, files):
    arguments = {"device": "cpu", "threads": 1, "dtype": "float32", "kv_cache_memory_gib": 0.05, "max_model_len": 512}
    limits = {"allowed_local_media_path": files, "limit_mm_per_prompt": {"image": 2}, "enable_mm_embeds": True}
    with services_in_process(), LLM(str(directory), served_model_name="llava", **arguments, **limits) as llm:
        yield llm


@pytest.fixture(scope="module")
def expected(reference) -> list[int]:
    return reference.generate(reference.prepare_text(TEXT, [DATA]), 6).token_ids


@pytest.fixture(scope="module")
def expected_of_chat(reference) -> list[int]:
    return reference.generate(reference.prepare(MESSAGES, [DATA]), 6).token_ids


def tokens(outputs) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_every_form_of_an_image_has_the_tokens_of_transformers(llm, expected):
    forms = [DATA, PIL, np.asarray(PIL), [PIL], np.asarray(PIL)[None]]

    outputs = llm.generate([{"prompt": TEXT, "multi_modal_data": {"image": form}} for form in forms], PARAMS, use_tqdm=False)

    assert tokens(outputs) == [expected] * len(forms)


def test_embeddings_in_place_of_an_image_have_the_tokens_of_transformers(llm, reference, expected, expected_of_chat):
    rows = reference.embeddings(reference.prepare_text(TEXT, [DATA]))
    forms = [rows, rows[None], [rows], {"image_embeds": rows}]
    part = {"type": "image_embeds", "image_embeds": rows}

    outputs = llm.generate([{"prompt": TEXT, "multi_modal_data": {"image": form}} for form in forms], PARAMS, use_tqdm=False)
    chat = llm.chat([{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}], PARAMS, use_tqdm=False)

    assert tokens(outputs) == [expected] * len(forms)
    assert tokens(chat) == [expected_of_chat]


def test_a_prompt_of_ids_and_an_image_that_was_seen(llm, expected):
    ids = llm.get_tokenizer().encode(TEXT)
    named = {"prompt_token_ids": ids, "multi_modal_data": {"image": DATA}, "multi_modal_uuids": {"image": "my image"}}
    seen = {"prompt": TEXT, "multi_modal_data": {"image": None}, "multi_modal_uuids": {"image": ["my image"]}}

    assert tokens(llm.generate(named, PARAMS, use_tqdm=False)) == [expected]
    assert tokens(llm.generate(seen, PARAMS, use_tqdm=False)) == [expected]


def test_conversations_have_images_in_every_form(llm, files, expected_of_chat):
    url = "data:image/png;base64," + base64.b64encode(DATA).decode()
    parts = [
        {"type": "image_pil", "image_pil": PIL},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": {"url": (files / "a.png").as_uri()}},
    ]
    conversations = [[{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}] for part in parts]
    text = [{"role": "user", "content": "What?"}]

    outputs = llm.chat([*conversations, text], PARAMS, use_tqdm=False)

    assert tokens(outputs[:3]) == [expected_of_chat] * 3
    assert tokens(outputs)[3] != expected_of_chat


def test_several_images_are_those_of_their_placeholders(llm, reference):
    text = "user: <image> and <image>?"
    wanted = reference.generate(reference.prepare_text(text, [DATA, OTHER]), 6).token_ids

    [output] = llm.generate({"prompt": text, "multi_modal_data": {"image": [PIL, OTHER]}}, PARAMS, use_tqdm=False)

    assert list(output.outputs[0].token_ids) == wanted


def test_a_search_and_enqueued_requests_see_the_image(llm, expected):
    prompt = {"prompt": TEXT, "multi_modal_data": {"image": PIL}}

    [found] = llm.beam_search(prompt, BeamSearchParams(beam_width=1, max_tokens=6, ignore_eos=True))
    llm.enqueue([prompt], PARAMS, use_tqdm=False)

    assert found.sequences[0].tokens[-6:] == expected
    assert tokens(llm.wait_for_completion(use_tqdm=False)) == [expected]


def test_the_steps_of_an_engine_see_the_image(llm, expected):
    engine = llm.llm_engine
    engine.add_request("a", {"prompt": TEXT, "multi_modal_data": {"image": PIL}}, PARAMS)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()

    assert list(outputs[-1].outputs[0].token_ids) == expected


def test_settings_of_the_processor_may_come_with_a_call(llm, expected):
    prompt = {"prompt": TEXT, "multi_modal_data": {"image": PIL}}

    with pytest.raises(InvalidRequest, match="mm_processor_kwargs has 'colours'; this model takes"):
        llm.generate(prompt, PARAMS, use_tqdm=False, mm_processor_kwargs={"colours": 3})
    with pytest.raises(InvalidRequest, match="mm_processor_kwargs has 'colours'; this model takes"):
        chat = [{"role": "user", "content": [{"type": "image_pil", "image_pil": PIL}]}]
        llm.chat(chat, PARAMS, use_tqdm=False, mm_processor_kwargs={"colours": 3})


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ({"prompt": TEXT, "multi_modal_data": {"image": [DATA] * 3}}, r"At most 2 image\(s\) may be provided in one prompt"),
        ({"prompt": TEXT, "multi_modal_data": {"image": [DATA] * 2}}, "Found fewer '<image>' placeholders"),
        ({"prompt": f"{TEXT}<image>", "multi_modal_data": {"image": DATA}}, "Found more '<image>' placeholders"),
        ({"prompt": TEXT, "multi_modal_data": {"image": b"no image"}}, "image"),
        ({"prompt": TEXT, "multi_modal_data": {"audio": [1.0]}}, "At most 0 audio"),
        ({"prompt": TEXT, "multi_modal_data": {"image": None}, "multi_modal_uuids": {"image": "new"}}, "Cache miss for image"),
        ({"prompt": TEXT, "multi_modal_data": {"image": [DATA]}, "multi_modal_uuids": {"image": ["a", "b"]}}, "2 names for 1"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_next_call_runs(llm, expected, prompt, text):
    with pytest.raises(InvalidRequest, match=text):
        llm.generate(prompt, PARAMS, use_tqdm=False)

    assert tokens(llm.generate({"prompt": TEXT, "multi_modal_data": {"image": DATA}}, PARAMS, use_tqdm=False)) == [expected]


def test_a_file_outside_of_the_directory_is_refused(llm, tmp_path):
    (tmp_path / "b.png").write_bytes(DATA)
    part = {"type": "image_url", "image_url": {"url": (tmp_path / "b.png").as_uri()}}

    with pytest.raises(InvalidRequest, match="must be a subpath of `--allowed-local-media-path`"):
        llm.chat([{"role": "user", "content": [part]}], PARAMS, use_tqdm=False)


def test_many_images_are_each_their_own_requests(llm, reference):
    images = [picture(60, 60, seed=seed) for seed in range(40)]
    prompts = [{"prompt": TEXT, "multi_modal_data": {"image": each}} for each in images]

    outputs = llm.generate(prompts, PARAMS, use_tqdm=False)

    for place in (0, 39):
        assert tokens(outputs)[place] == reference.generate(reference.prepare_text(TEXT, [images[place]]), 6).token_ids


@pytest.mark.usefixtures("services_here")
def test_requests_wait_for_the_memory_of_images(directory, reference, monkeypatch):
    """The engine core refuses further images while it holds three; the library sends them again."""
    monkeypatch.setenv("TETRAD_ENGINE_CORE_MAX_TOTAL_MEDIA_BYTES", str(3 * 3 * 28 * 28))
    images = [picture(60, 60, seed=seed) for seed in range(12)]
    prompts = [{"prompt": TEXT, "multi_modal_data": {"image": each}} for each in images]

    with LLM(str(directory), device="cpu", threads=1, dtype="float32", kv_cache_memory_gib=0.05, max_model_len=512) as llm:
        outputs = llm.generate(prompts, PARAMS, use_tqdm=False)

    for place in (0, 11):
        assert tokens(outputs)[place] == reference.generate(reference.prepare_text(TEXT, [images[place]]), 6).token_ids


@pytest.mark.usefixtures("services_here")
def test_the_operator_may_allow_larger_images_than_the_files_of_the_model(tmp_path):
    save_vision_model(tmp_path, "internvl")
    chat = [{"role": "user", "content": [{"type": "image", "image": picture(600, 100)}]}]
    numbers = []

    for kwargs in (None, {"max_patches": 9}):
        with LLM(str(tmp_path), device="cpu", threads=1, max_model_len=512, mm_processor_kwargs=kwargs) as llm:
            [output] = llm.chat(chat, PARAMS, use_tqdm=False)
            numbers.append(len(output.prompt_token_ids))

    assert numbers[0] < numbers[1]


@pytest.mark.usefixtures("services_here")
async def test_an_async_llm_streams_what_it_sees(directory, expected):
    args = EngineArgs(str(directory), device="cpu", threads=1, dtype="float32", kv_cache_memory_gib=0.05, max_model_len=512)
    async with AsyncLLM.from_engine_args(args) as llm:
        stream = llm.generate({"prompt": TEXT, "multi_modal_data": {"image": PIL}}, PARAMS, "a")
        outputs = [output async for output in stream]

    assert len(outputs) > 1
    assert list(outputs[-1].outputs[0].token_ids) == expected


@pytest.mark.usefixtures("services_here")
def test_a_model_of_texts_refuses_images(smollm2):
    with LLM(str(smollm2), device="sim", max_model_len=512, served_model_name="text") as llm:
        with pytest.raises(InvalidRequest, match="is not a multimodal model"):
            llm.generate({"prompt": "a", "multi_modal_data": {"image": PIL}}, PARAMS, use_tqdm=False)
        with pytest.raises(InvalidRequest, match="is not a multimodal model"):
            llm.chat([{"role": "user", "content": [{"type": "image_pil", "image_pil": PIL}]}], PARAMS, use_tqdm=False)
