"""Speculation behind images: verified drafts have positions on three axes; drafters know text only, and change no token."""

import pytest

from tests.worker_svc.conftest import LAYOUT, Driver
from tests.worker_svc.families.image_prompts import image_prompt, media_of
from tests.worker_svc.families.tiny_wrappers import save_wrapper
from tests.worker_svc.runner.proposals import proposals_of
from tetrad.worker_svc.checkpoint.model_config import read_model_config
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.families.registry import read_config

PIECES = ([3, (4, 6), 5, (3, 2), 2], [(5, 3), 40], [30, (2, 9)], [37])
NUM_TOKENS, NUM_DRAFTS = 16, 3


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl", "qwen3_5", "glm4v"])
def files(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    save_wrapper(directory, request.param)
    return directory


@pytest.fixture
def driver_of(files, cpu):
    """Return a function that drives the model, with options of its loading."""
    facts = {"has_axes": True, "num_deep": read_config(read_model_config(files)).num_deep_layers}
    prompts = [image_prompt(seed, pieces, **facts) for seed, pieces in enumerate(PIECES)]

    def driver(**options: object) -> Driver:
        model = cpu.load_model(LoadRequest("target", files, **options), lambda *_: None)
        getattr(model, "_target", model).media = media_of(prompts, **facts)
        driver = Driver(model.make_runner(LAYOUT), LAYOUT)
        for handle, prompt in enumerate(prompts):
            driver.add(handle, prompt.token_ids, media=prompt.spans)
        return driver

    return driver


def test_right_and_wrong_drafts_are_verified(driver_of):
    expected, driver = driver_of().generate(NUM_TOKENS), driver_of()
    driver.step({handle: driver.remaining(handle) for handle in driver.requests})

    while len(driver.requests[0].output) < NUM_TOKENS - NUM_DRAFTS:
        drafts = {}
        for handle, request in driver.requests.items():
            room = -request.num_tokens % LAYOUT.block_size  # the drafts of a model with states end with their block
            right = expected[handle][len(request.output) :][: min(NUM_DRAFTS, room)]
            drafts[handle] = [*right[:-1], *(token ^ handle % 2 for token in right[-1:])]
        driver.verify(drafts)

    for handle, request in driver.requests.items():
        assert request.output == expected[handle][: len(request.output)]


def test_a_draft_model_changes_no_token(driver_of, files):
    if "qwen3_5" in files.name:
        pytest.skip("a draft model has no states")
    expected = driver_of().generate(NUM_TOKENS)
    driver = driver_of(draft_method="draft_model", draft_path=files)
    proposals = proposals_of(driver.step({h: driver.remaining(h) for h in driver.requests}, num_spec_tokens=NUM_DRAFTS))

    while any(len(each.output) < NUM_TOKENS for each in driver.requests.values()):
        drafts = {handle: proposals.get(handle, []) for handle in driver.requests}
        proposals = proposals_of(driver.verify(drafts, num_spec_tokens=NUM_DRAFTS))

    outputs = {handle: request.output for handle, request in driver.requests.items()}
    assert outputs == {handle: (expected[handle] + outputs[handle][NUM_TOKENS:])[: len(outputs[handle])] for handle in outputs}
