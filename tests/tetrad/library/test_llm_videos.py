"""LLM with videos: every form of a prompt has the tokens of transformers' model on the same frames."""

import base64

import numpy as np
import pytest
import torch
from PIL import Image

from tests.one_process_llm import services_in_process
from tests.video_files import frame_file, moving, png, video
from tests.vision_files import save_vision_model
from tests.vision_reference import Prepared, VisionReference
from tests.worker_svc.media.video_prompts import Video
from tetrad import LLM, SamplingParams
from tetrad.services.errors import InvalidRequest

PARAMS = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
FRAMES, FPS = moving(4, 56, 28), 4.0
ABOUT = {"fps": FPS}
TEXT = "user: <|vision_start|><|video_pad|><|vision_end|>What?"
PILLOW = [Image.fromarray(frame) for frame in FRAMES]
URL = "data:video/jpeg;base64," + ",".join(base64.b64encode(png(frame)).decode() for frame in FRAMES)
FORMS = {
    "array with metadata": (FRAMES, ABOUT),
    "list of arrays with metadata": (list(FRAMES), ABOUT),
    "images with metadata": (PILLOW, ABOUT),
    "list of one video": [(FRAMES, ABOUT)],
    "file of frames": frame_file(FRAMES, **ABOUT),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen") / "model"
    save_vision_model(path, "qwen2_5_vl")
    return path


@pytest.fixture(scope="module")
def reference(directory):
    return VisionReference(directory)


@pytest.fixture(scope="module")
def llm(directory):
    arguments = {"device": "cpu", "threads": 1, "dtype": "float32", "kv_cache_memory_gib": 0.05, "max_model_len": 512}
    with services_in_process(), LLM(str(directory), media_io_kwargs={"video": {"num_frames": 4}}, **arguments) as llm:
        yield llm


def check(reference, output, frames=FRAMES, fps=FPS):
    made = Video(reference, "qwen2_5_vl", frames.transpose(0, 3, 1, 2))
    ids = torch.tensor([output.prompt_token_ids])
    inputs = {"input_ids": ids, "mm_token_type_ids": (ids == made.mark_id).int() * 2, **made.tensors}
    inputs["second_per_grid_ts"] = torch.tensor([2 / fps])
    expected = reference.generate(Prepared("", output.prompt_token_ids, {}, inputs), 6)
    assert list(output.outputs[0].token_ids) == expected.token_ids


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_video_has_the_tokens_of_transformers(form, llm, reference):
    [output] = llm.generate({"prompt": TEXT, "multi_modal_data": {"video": FORMS[form]}}, PARAMS)

    check(reference, output)


def test_frames_of_which_nothing_is_known_are_those_of_a_film(llm, reference):
    outputs = llm.generate([{"prompt": TEXT, "multi_modal_data": {"video": each}} for each in (FRAMES, PILLOW)], PARAMS)

    for output in outputs:
        check(reference, output, fps=24.0)


def test_a_prompt_says_how_its_video_is_read(llm):
    prompt = {"prompt": TEXT, "multi_modal_data": {"video": video(20, size=(56, 28))}}

    [four] = llm.generate(prompt, PARAMS)
    [two] = llm.generate(prompt | {"media_io_kwargs": {"video": {"num_frames": 2}}}, PARAMS)
    [small] = llm.generate(prompt, PARAMS, mm_processor_kwargs={"max_pixels": 28 * 28})

    assert [output.prompt_token_ids.count(four.prompt_token_ids[7]) for output in (four, two, small)] == [4, 2, 2]


def test_conversations_have_videos(llm, reference):
    content = [{"type": "video_url", "video_url": {"url": URL}}, {"type": "text", "text": "What?"}]

    [output] = llm.chat([{"role": "user", "content": content}], PARAMS)

    check(reference, output, fps=1.0)


def test_wrong_videos_are_refused(llm):
    with pytest.raises(InvalidRequest, match=r"multi_modal_data\['video'\]\[0\] must be an array"):
        llm.generate({"prompt": TEXT, "multi_modal_data": {"video": "film.mp4"}}, PARAMS)
    with pytest.raises(InvalidRequest, match="has the dtype float64"):
        llm.generate({"prompt": TEXT, "multi_modal_data": {"video": np.zeros((2, 4, 4, 3))}}, PARAMS)
    with pytest.raises(InvalidRequest, match="Found fewer"):
        llm.generate({"prompt": "What?", "multi_modal_data": {"video": FRAMES}}, PARAMS)
