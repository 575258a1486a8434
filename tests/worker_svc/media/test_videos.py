"""Prompts with videos give the log-probabilities of transformers' whole model on the same frames, for all splits of steps."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.pictures import picture
from tests.vision_files import save_vision_model
from tests.vision_reference import VisionReference
from tests.worker_svc.conftest import LAYOUT, Driver
from tests.worker_svc.media.image_prompts import image_prompt
from tests.worker_svc.media.video_prompts import PARTS, VideoPrompt, video_prompt
from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.plan import EncoderItem, SamplingSpec
from tetrad.worker_svc.media.positions import PromptAxes
from tetrad.worker_svc.media.video_kinds import VIDEO_KINDS

LOGPROBS = SamplingSpec(temperature=0.0, num_logprobs=0)
COUNT = 5
AXES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "glm4v", "glm46v")


def frames_of(kind: str, count: int, seed: int = 0) -> np.ndarray:
    """Return frames [count, 3, H, W] of a size that the kind reads."""
    side = 32 if kind.startswith("qwen3") else 28
    size = (side, side) if kind in ("smolvlm", "internvl", "llava_onevision") else (side, 2 * side)
    return np.random.default_rng(seed).integers(0, 256, (count, 3, *size), np.uint8)


class Model:
    """A tiny model, transformers' reference, and a runner whose encoder cache has the media of its prompts."""

    def __init__(self, directory, kind, load):
        save_vision_model(directory, kind)
        self.kind = kind
        # In float32, transformers' gated delta rule over chunks of 64 tokens is off by 1e-4 itself.
        self.reference = VisionReference(directory, torch.float64)
        self.loaded = load(directory)

    def prompt(self, count=5, seed=0, **options) -> VideoPrompt:
        prompt = video_prompt(self.reference, self.kind, frames_of(self.kind, count, seed), **options)
        name = f"v{count}.{seed}"
        prompt = replace(
            prompt,
            spans=tuple(replace(span, identifier=name) for span in prompt.spans),
            items=tuple(replace(item, identifier=name) for item in prompt.items),
        )
        for item in prompt.items:
            self.loaded.media.cache.put(0, name, self.loaded.media.tower.encode(item), 0)
        return prompt

    def driver(self) -> Driver:
        return Driver(self.loaded.make_runner(LAYOUT))


@pytest.fixture
def make(tmp_path, load):
    return lambda kind: Model(tmp_path, kind, load)


def add(driver, handle, prompt, **fields):
    return driver.add(handle, prompt.token_ids, LOGPROBS, media=prompt.spans, **fields)


def logprobs_of(request):
    return np.array([row[1][0] for row in request.logprobs])[:COUNT]


def check(request, reference, prompt):
    expected = reference.generate(prompt.prepared, COUNT)
    assert request.output[:COUNT] == expected.token_ids
    assert np.abs(logprobs_of(request) - expected.logprobs_of_tokens()).max() < 5e-5


@pytest.mark.parametrize("kind", PARTS)
def test_prompts_with_videos_in_one_batch_and_in_chunks(kind, make):
    model = make(kind)
    prompts = [model.prompt(), model.prompt(2, 1, before="Compare")]
    driver = model.driver()

    requests = [add(driver, handle, prompt) for handle, prompt in enumerate(prompts)]
    driver.generate(COUNT, chunk=7)

    for request, prompt in zip(requests, prompts, strict=True):
        check(request, model.reference, prompt)


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_alone_in_a_batch_and_after_a_preemption_the_results_are_equal(kind, make):
    model = make(kind)
    prompt, other = model.prompt(8, seconds=3.0), model.prompt(4, 1)
    alone, batched, preempted = model.driver(), model.driver(), model.driver()
    first = add(alone, 0, prompt)
    alone.generate(COUNT)

    add(batched, 1, other)
    second = add(batched, 0, prompt)
    batched.generate(COUNT, chunk=5)
    add(preempted, 0, prompt)
    preempted.generate(2)
    before = preempted.remove(0)
    third = add(preempted, 0, prompt)
    third.output, third.logprobs, third.num_tokens = before.output, before.logprobs, before.num_tokens
    preempted.generate(COUNT)

    check(first, model.reference, prompt)
    assert first.output[:COUNT] == second.output[:COUNT] == third.output[:COUNT]
    assert logprobs_of(first).tolist() == logprobs_of(second).tolist()


@pytest.mark.parametrize("seconds", [0.3, 1.0, 2.5, 40.0])
@pytest.mark.parametrize("kind", AXES)
def test_positions_are_those_of_transformers(kind, seconds, tmp_path):
    save_vision_model(tmp_path, kind)
    reference = VisionReference(tmp_path)
    prompt = video_prompt(reference, kind, frames_of(kind, 9), before="Compare", after="? Explain.", seconds=seconds)
    names = ("input_ids", "mm_token_type_ids", "video_grid_thw", "second_per_grid_ts")
    inputs = {name: prompt.prepared.inputs[name] for name in names if name in prompt.prepared.inputs}
    expected, _ = reference.model.model.get_rope_index(**inputs)

    axes = PromptAxes(prompt.spans)

    length = len(prompt.token_ids)
    assert axes.of(0, length).tolist() == expected[:, 0].tolist()
    # `generate` counts on from the last token of the prompt.
    assert axes.of(length, 6).tolist() == (expected[:, 0, -1:] + torch.arange(1, 7)).tolist()


def test_images_and_videos_of_a_prompt(make):
    model = make("qwen2_vl")
    video, images = model.prompt(), image_prompt(model.reference, [picture(60, 40)])
    for item in images.items:
        model.loaded.media.cache.put(0, item.identifier, model.loaded.media.tower.encode(item), 0)
    length = len(images.token_ids)
    ids = images.token_ids + video.token_ids
    spans = (*images.spans, *(replace(span, offset=span.offset + length) for span in video.spans))
    theirs, ours = images.prepared.inputs, video.prepared.inputs
    kinds = torch.cat([theirs["mm_token_type_ids"], ours["mm_token_type_ids"]], dim=1)
    inputs = {**theirs, **ours, "input_ids": torch.tensor([ids]), "mm_token_type_ids": kinds}
    inputs.pop("attention_mask", None)
    driver = model.driver()

    request = driver.add(0, ids, LOGPROBS, media=spans)
    driver.generate(COUNT, chunk=9)

    check(request, model.reference, replace(video, prepared=replace(video.prepared, token_ids=ids, inputs=inputs)))


def test_every_kind_of_video_has_a_test():
    classes = {"qwen3_5": "Qwen3_5", "smolvlm": "SmolVLM", "internvl": "InternVL", "llava_onevision": "LlavaOnevision"}
    assert len(PARTS) + len({"glm4v_moe", "qwen3_5_moe"}) == len(VIDEO_KINDS)
    assert all(f"{name}ForConditionalGeneration" in VIDEO_KINDS for name in classes.values())


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({}, "has no tensors"),
        ({"pixel_values_videos": np.zeros((8, 7), np.uint8), "video_grid_thw": np.array([1, 2, 4])}, "has shape"),
        ({"pixel_values_videos": np.zeros((8, 1176), np.uint8), "video_grid_thw": np.array([2, 2, 4])}, "has shape"),
        ({"pixel_values_videos": np.zeros((8, 1176), np.uint8), "video_grid_thw": np.array([0, 2, 4])}, "3 numbers"),
    ],
)
def test_tensors_that_are_no_video_are_refused(tensors, reason, make):
    tower = make("qwen2_vl").loaded.media.tower

    with pytest.raises(InvalidRequest, match=reason):
        tower.encode(EncoderItem("v", "video", tensors, 2))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"time_step": float("nan")}, "positions between them"),
        ({"time_step": 1e9}, "positions between them"),
        ({"is_embed": np.array([1, 0, 1] + [1] * 4, np.bool_), "length": 7}, "has 2 runs of embeddings"),
    ],
)
def test_places_that_contradict_the_grid_fail_their_request_alone(changes, reason, make):
    model = make("qwen2_vl")
    prompt, driver = model.prompt(), model.driver()
    driver.add(0, prompt.token_ids, LOGPROBS, media=(replace(prompt.spans[0], **changes),))

    [(_, found)] = driver.runner.execute(driver.plan({0: 4})).failures

    assert reason in found.message


def test_a_video_needs_the_memory_of_one_of_its_parts(make):
    tower = make("qwen2_vl").loaded.media.tower

    assert tower.activation_bytes(16) == tower.activation_bytes(10_000) < tower.activation_bytes(16) * 2
