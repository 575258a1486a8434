"""Drafts after prompts with images: the results are those of transformers' whole model, whatever is drafted."""

import pytest

from tests.pictures import picture
from tests.worker_svc.conftest import LAYOUT, Driver
from tests.worker_svc.media.test_prompts import COUNT, Model, add, check
from tests.worker_svc.runner.proposals import proposals_of
from tetrad.worker_svc.core.device import LoadRequest

KINDS = ["smolvlm", "qwen2_5_vl", "qwen3_vl"]
PROMPTS = [("What?", picture(60, 40)), ("Compare", picture(30, 90, 1))]


def requests_of(driver, prompts):
    return [add(driver, handle, prompt) for handle, prompt in enumerate(prompts)]


@pytest.mark.parametrize("kind", KINDS)
def test_right_and_wrong_drafts_do_not_change_the_results(kind, tmp_path, load):
    model = Model(tmp_path, kind, load)
    prompts = [model.prompt(image, before=before) for before, image in PROMPTS]
    expected = [model.reference.generate(prompt.prepared, COUNT).token_ids for prompt in prompts]
    driver = model.driver()
    requests = requests_of(driver, prompts)
    driver.step({handle: driver.remaining(handle) for handle in driver.requests})

    while min(len(request.output) for request in requests) < COUNT:
        right = {handle: expected[handle][len(request.output) :][:1] for handle, request in enumerate(requests)}
        driver.verify({handle: [*drafts, 1] for handle, drafts in right.items()})

    for request, prompt in zip(requests, prompts, strict=True):
        check(request, model.reference, prompt)


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_model_of_text_drafts_for_prompts_with_images(kind, tmp_path, cpu):
    def load(path):
        return cpu.load_model(LoadRequest("target", path, draft_method="draft_model", draft_path=path), lambda *_: None)

    model = Model(tmp_path, kind, load)
    prompts = [model.prompt(image, before=before) for before, image in PROMPTS]
    driver = Driver(model.loaded.make_runner(LAYOUT))
    requests = requests_of(driver, prompts)
    result = driver.step({handle: driver.remaining(handle) for handle in driver.requests}, num_spec_tokens=3)
    num_drafts = 0

    while min(len(request.output) for request in requests) < COUNT:
        drafts = proposals_of(result)
        num_drafts += sum(map(len, drafts.values()))
        result = driver.verify({handle: drafts.get(handle, []) for handle in driver.requests}, num_spec_tokens=3)

    assert num_drafts
    for request, prompt in zip(requests, prompts, strict=True):
        check(request, model.reference, prompt)
