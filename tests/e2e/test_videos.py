"""Videos in prompts, through all four services: tokens and log-probabilities are those of transformers' whole model."""

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tests.e2e.adapted_stack import kill, restartable, served, steps_pass
from tests.e2e.test_images import Answer, chat, client_of, refusal
from tests.pictures import picture
from tests.video_files import frame_file, moving, png, video
from tests.vision_files import save_vision_model
from tests.vision_reference import Prepared, VisionReference
from tests.worker_svc.media.video_prompts import Video
from tetrad import SamplingParams

TOLERANCE = 2e-4
FPS = 4.0
MAIN = ("qwen2_5_vl", "qwen3_vl", "glm4v", "internvl", "llava_onevision")
"""Kinds whose processors leave the frames of these tests as they are."""
SIDES = {"qwen3_vl": (64, 32), "internvl": (28, 28), "llava_onevision": (28, 28)}


@pytest.fixture(autouse=True)
def one_image_process(monkeypatch):
    """A second one takes seconds to start."""
    monkeypatch.setenv("TETRAD_TOKENIZER_IMAGE_PROCESSES", "1")


def frames_of(kind: str, count: int, seed: int = 0) -> np.ndarray:
    return moving(count, *SIDES.get(kind, (56, 28)), seed=seed)


def part(frames: np.ndarray, **fields: str) -> dict[str, Any]:
    """Return a video as vLLM's list of frames."""
    images = ",".join(base64.b64encode(png(frame)).decode() for frame in frames)
    return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{images}"}} | fields


def file_part(data: bytes, **fields: str) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{base64.b64encode(data).decode()}"}} | fields


def asked(frames: np.ndarray) -> list[dict[str, Any]]:
    return [{"type": "text", "text": "What is in"}, part(frames), {"type": "text", "text": "it?"}]


def io(fps: float = FPS) -> dict[str, Any]:
    return {"media_io_kwargs": {"video": {"fps": fps}}}


def check(reference: VisionReference, kind: str, frames: np.ndarray, answer: Answer, fps: float = FPS) -> None:
    """Compare an answer with that of transformers' model to the same prompt and frames."""
    made = Video(reference, kind, frames.transpose(0, 3, 1, 2))
    ids = torch.tensor([answer.prompt])
    inputs: dict[str, Any] = {"input_ids": ids, **made.tensors}
    if made.grid is not None:
        inputs["mm_token_type_ids"] = (ids == made.mark_id).int() * 2
    if kind == "qwen2_5_vl":
        inputs["second_per_grid_ts"] = torch.tensor([2 / fps])
    expected = reference.generate(Prepared("", answer.prompt, {}, inputs), len(answer.token_ids))
    assert answer.token_ids == expected.token_ids
    assert answer.logprobs == pytest.approx(expected.logprobs_of_tokens(), abs=TOLERANCE)


async def together(http: httpx.AsyncClient, videos: Sequence[np.ndarray], **fields: object) -> list[Answer]:
    return await asyncio.gather(*(chat(http, asked(frames), **io(), **fields) for frames in videos))


@pytest.mark.parametrize("kind", MAIN)
async def test_alone_cached_and_in_one_batch(kind, tmp_path):
    save_vision_model(tmp_path, kind)
    reference, videos = VisionReference(tmp_path), [frames_of(kind, count, seed) for seed, count in enumerate((6, 3, 8))]
    async with served(tmp_path, f"videos-{kind}", max_model_len=512) as llm, client_of(llm) as http:
        alone = [await chat(http, asked(frames), **io()) for frames in videos]
        again = await together(http, videos)

    for frames, first, second in zip(videos, alone, again, strict=True):
        check(reference, kind, frames, first)
        check(reference, kind, frames, second)
        assert second.prompt == first.prompt
        assert second.num_cached >= len(second.prompt) - 8


async def test_in_chunks_that_end_inside_a_video_and_preempted(tmp_path):
    save_vision_model(tmp_path, "qwen3_vl")
    reference, videos = VisionReference(tmp_path), [frames_of("qwen3_vl", 6, seed) for seed in range(5)]
    options = {"max_num_batched_tokens": 16, "max_model_len": 160, "num_gpu_blocks_override": 28}
    async with served(tmp_path, "videos-chunks", **options) as llm, client_of(llm) as http:
        await llm.engine_admin.pause("keep", clear_cache=False)
        running = asyncio.create_task(together(http, videos, max_tokens=40))
        while (await llm.engine_admin.loads_known())[0].scheduler.num_waiting < len(videos):  # noqa: ASYNC110 - no event says it
            await asyncio.sleep(0.01)
        await llm.engine_admin.resume()
        answers = await running
        stats = (await llm.engine_admin.loads_known())[0].scheduler

    for frames, answer in zip(videos, answers, strict=True):
        check(reference, "qwen3_vl", frames, answer)
    assert stats.num_preemptions > 0


@pytest.mark.parametrize("killed", ["worker", "engine_core", "tokenizer"])
async def test_lost_service_changes_no_token(killed, tmp_path):
    save_vision_model(tmp_path, "qwen2_5_vl")
    reference, videos = VisionReference(tmp_path), [frames_of("qwen2_5_vl", 6, seed) for seed in range(3)]
    async with restartable(tmp_path, f"videos-{killed}", max_model_len=512) as services, client_of(services.llm) as http:
        running = asyncio.gather(*(chat(http, asked(frames), **io(), max_tokens=40) for frames in videos))
        await steps_pass(services.llm, 6)
        assert not running.done()
        await kill(services, killed)
        answers = await running

    for frames, answer in zip(videos, answers, strict=True):
        check(reference, "qwen2_5_vl", frames, answer)


async def test_files_names_and_images_beside_them(tmp_path):
    save_vision_model(tmp_path, "smolvlm")
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(picture(60, 40)).decode()}"}}
    async with served(tmp_path, "videos-files", max_model_len=1024) as llm, client_of(llm) as http:
        ask = [{"type": "text", "text": "What is in"}, file_part(video(20), uuid="one"), url]
        first = await chat(http, ask, media_io_kwargs={"video": {"num_frames": 3}})
        ask[1] = {"type": "video_url", "video_url": None, "uuid": "one"}
        again = await chat(http, ask, media_io_kwargs={"video": {"num_frames": 3}})
        ask[1] |= {"uuid": "other"}
        missing = await refusal(http, *ask)
        broken = await refusal(http, "What is in", file_part(video(20)[:500]))

    assert again.token_ids == first.token_ids
    assert again.num_cached >= len(again.prompt) - 8
    assert missing == (400, "Cache miss for video at index 0 but data is not provided.", "messages[0].content[1]")
    assert (broken[0], broken[2]) == (400, "messages[0].content[1]")
    assert broken[1].startswith("Failed to load video 0 (video/mp4): the data is no video of these formats, or is damaged")


async def test_prompts_of_text_with_videos_have_the_tokens_of_conversations(tmp_path):
    save_vision_model(tmp_path, "qwen3_vl")
    reference, frames = VisionReference(tmp_path), frames_of("qwen3_vl", 4)
    prompt = {
        "prompt": "user: <|vision_start|><|video_pad|><|vision_end|> it?",
        "multi_modal_data": {"video": frame_file(frames, fps=FPS)},
    }
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=0)
    async with served(tmp_path, "videos-prompts", max_model_len=512) as llm:
        stream = await llm.add_request("r", prompt, params)
        output = [each async for each in stream][-1]

    [choice] = output.outputs
    logprobs = [each[token].logprob for each, token in zip(choice.logprobs, choice.token_ids, strict=True)]
    check(reference, "qwen3_vl", frames, Answer(list(output.prompt_token_ids), list(choice.token_ids), logprobs))


async def test_the_operator_refuses_videos(tmp_path):
    save_vision_model(tmp_path, "qwen2_vl")
    options = {"max_model_len": 512, "frontend": {"limit_mm_per_prompt": '{"video": 0}'}}
    async with served(tmp_path, "videos-none", **options) as llm, client_of(llm) as http:
        refused = await refusal(http, "What is in", file_part(video(4)))
        seen = await chat(http, [picture(60, 40), "?"])

    assert refused[:2] == (
        400,
        "At most 0 video(s) may be provided in one prompt. Set `--limit-mm-per-prompt` to increase this limit.",
    )
    assert seen.token_ids
