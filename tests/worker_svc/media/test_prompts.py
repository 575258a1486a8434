"""Prompts with images give the log-probabilities of transformers' whole model, for all splits of their steps."""

from dataclasses import replace

import numpy as np
import pytest

from tests.pictures import picture
from tests.vision_files import save_vision_model
from tests.vision_kinds import KINDS
from tests.vision_reference import VisionReference
from tests.worker_svc.conftest import LAYOUT, Driver
from tests.worker_svc.media.image_prompts import ImagePrompt, image_prompt
from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.worker_svc.core.plan import PromptEmbeds, SamplingSpec
from tetrad.worker_svc.media.tower_kinds import TOWER_KINDS

LOGPROBS = SamplingSpec(temperature=0.0, num_logprobs=0)
COUNT = 5


class Model:
    """A tiny model, transformers' reference, and a runner whose encoder cache has the images of its prompts."""

    def __init__(self, directory, kind, load):
        self.architecture = type(save_vision_model(directory, kind)).__name__
        self.reference = VisionReference(directory)
        self.loaded = load(directory)

    def prompt(self, *images, **texts) -> ImagePrompt:
        prompt = image_prompt(self.reference, images, **texts)
        for item in prompt.items:
            self.loaded.media.cache.put(0, item.identifier, self.loaded.media.tower.encode(item), 0)
        return prompt

    def driver(self) -> Driver:
        return Driver(self.loaded.make_runner(LAYOUT))


@pytest.fixture
def make(tmp_path, load):
    return lambda kind: Model(tmp_path, kind, load)


def add(driver, handle, prompt, **fields):
    return driver.add(handle, prompt.token_ids, LOGPROBS, media=prompt.spans, **fields)


def logprobs_of(request):
    return np.array([row[1][0] for row in request.logprobs])


def check(request, reference, prompt):
    expected = reference.generate(prompt.prepared, COUNT)
    assert request.output[:COUNT] == expected.token_ids
    assert np.abs(logprobs_of(request)[:COUNT] - expected.logprobs_of_tokens()).max() < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_of_images_and_text_in_one_batch_and_in_chunks(kind, make):
    model = make(kind)
    if model.architecture not in TOWER_KINDS:
        pytest.skip("it takes only text")
    prompts = [model.prompt(picture(60, 40)), model.prompt(picture(30, 90, 1), picture(60, 40), before="Compare")]
    prompts.append(model.prompt())

    batched = model.driver()
    requests = [add(batched, handle, prompt) for handle, prompt in enumerate(prompts)]
    batched.generate(COUNT, chunk=10_000 if model.loaded.media.tower.modalities[0].is_whole else 7)

    for request, prompt in zip(requests, prompts, strict=True):
        check(request, model.reference, prompt)


@pytest.mark.parametrize("kind", ["smolvlm", "qwen2_5_vl", "qwen3_vl"])
def test_alone_in_a_batch_in_chunks_and_after_a_preemption_the_results_are_equal(kind, make):
    model = make(kind)
    prompt, other = model.prompt(picture(60, 40)), model.prompt(picture(30, 90, 1), before="Compare")
    alone, batched, preempted = model.driver(), model.driver(), model.driver()
    first = add(alone, 0, prompt)
    alone.generate(COUNT)

    add(batched, 1, other)
    second = add(batched, 0, prompt)
    batched.generate(COUNT, chunk=5)
    third = add(preempted, 0, prompt)
    preempted.generate(2)
    before = preempted.remove(0)
    third = preempted.add(0, prompt.token_ids, LOGPROBS, media=prompt.spans)
    third.output, third.logprobs, third.num_tokens = before.output, before.logprobs, before.num_tokens
    preempted.generate(COUNT)

    assert first.output[:COUNT] == second.output[:COUNT] == third.output[:COUNT]
    assert logprobs_of(first)[:COUNT].tolist() == logprobs_of(second)[:COUNT].tolist()


@pytest.mark.parametrize("kind", ["smolvlm", "qwen2_5_vl"])
def test_a_prefix_that_is_cached_needs_no_image(kind, make):
    model = make(kind)
    prompt = model.prompt(picture(60, 40), after=" What does the picture show?")
    driver = model.driver()
    first = add(driver, 0, prompt)
    driver.generate(COUNT)
    end = prompt.spans[0].offset + prompt.spans[0].length
    computed = -(-end // LAYOUT.block_size) * LAYOUT.block_size
    assert computed < len(prompt.token_ids)

    model.loaded.media.cache.restart(1)
    second = add(driver, 1, prompt, shared=first.tables[0][: computed // LAYOUT.block_size], computed=computed)
    driver.generate(COUNT)

    assert second.output[:COUNT] == first.output[:COUNT]


def test_prompt_embeds_beside_images(make):
    model = make("qwen3_vl")
    prompt, ids = model.prompt(picture(60, 40)), [5, 6, 7, 8]
    table = model.reference.model.get_input_embeddings().weight.detach().numpy()
    alone = model.driver()
    plain = alone.add(0, ids, LOGPROBS)
    alone.generate(COUNT)

    driver = model.driver()
    request = add(driver, 0, prompt)
    given = driver.add(1, ids, LOGPROBS, prompt_embeds=PromptEmbeds(np.arange(4), table[ids]))
    driver.generate(COUNT)

    check(request, model.reference, prompt)
    assert given.output[:COUNT] == plain.output[:COUNT]


def test_a_plan_with_an_image_that_is_not_encoded_is_refused(make):
    model = make("smolvlm")
    prompt, driver = model.prompt(picture(60, 40)), model.driver()
    model.loaded.media.cache.restart(1)
    add(driver, 0, prompt)

    with pytest.raises(InvalidRequest, match="not in the encoder cache"):
        driver.step({0: len(prompt.token_ids)})


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"modality": "audio"}, Unsupported, "'image' or 'video', not 'audio'"),
        ({"offset": 1000}, InvalidRequest, r"tokens 1000 to \d+; items must not overlap, and the prompt has \d+"),
        ({"num_embeds": 3}, InvalidRequest, "num_embeds 3 for 2 tokens"),
        ({"grid": (1, 1, 3)}, InvalidRequest, r"grid \(1, 1, 3\) for 2 tokens"),
        ({"grid": None}, InvalidRequest, "Media item 0 has no grid"),
        ({"is_embed": np.ones(9, np.bool_)}, InvalidRequest, "is_embed has 9 values for 2 tokens"),
    ],
)
def test_spans_that_contradict_the_prompt_fail_their_request_alone(changes, error, reason, make):
    model = make("qwen2_5_vl")
    prompt, driver = model.prompt(picture(60, 40)), model.driver()
    driver.add(0, prompt.token_ids, LOGPROBS, media=(replace(prompt.spans[0], **changes),))
    add(driver, 1, prompt)

    result = driver.runner.execute(driver.plan({0: 4, 1: 4}))

    [(handle, found)] = result.failures
    assert handle == 0
    with pytest.raises(error, match=reason):
        raise found


def test_a_model_without_a_tower_refuses_images(make):
    model = make("smolvlm")
    prompt = model.prompt(picture(60, 40))
    driver = Driver(model.loaded.host.make_runner(LAYOUT))
    add(driver, 0, prompt)

    [(_, found)] = driver.runner.execute(driver.plan({0: 4})).failures

    assert "takes only text" in found.message
