"""Drafts for prompts with images on the device, interpreted: the tokens of a run without drafts."""

import pytest

from tests.eagle3_files import save_eagle3
from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import record_drafts
from tests.worker_svc.cuda.draft_heads import K, rest
from tests.worker_svc.cuda.image_models import add_prompt, give_images
from tests.worker_svc.cuda.launches import Launches
from tests.worker_svc.families.image_prompts import image_prompt
from tests.worker_svc.families.tiny_wrappers import save_wrapper
from tests.worker_svc.runner.proposals import proposals_of
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.kernels.gather_inputs import gather_inputs

LAYOUT = KvLayout(num_blocks=40, block_size=16, max_model_len=96, max_num_seqs=2, max_num_batched_tokens=48)
PROMPTS = {0: image_prompt(0, [3, (4, 6), 5, (3, 2), 2], has_axes=True), 1: image_prompt(1, [5], has_axes=True)}
GREEDY = SamplingSpec(temperature=0.0)
NUM_TOKENS = 8


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The directory of a model with M-RoPE, and for each method the directory of its drafter."""
    directory = tmp_path_factory.mktemp("qwen")
    save_wrapper(directory, "qwen2_5_vl")
    head = save_eagle3(tmp_path_factory.mktemp("head"), eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    return directory, {"eagle3": head, "draft_model": directory}


@pytest.fixture(scope="module")
def expected(files, load_cuda):
    model = load_cuda(files[0])
    give_images(model, PROMPTS.values())
    return add_all(Driver(model.make_runner(LAYOUT), LAYOUT)).generate(NUM_TOKENS)


def add_all(driver: Driver) -> Driver:
    for handle, prompt in PROMPTS.items():
        add_prompt(driver, handle, prompt, GREEDY)
    return driver


@pytest.mark.parametrize("method", ["eagle3", "draft_model"])
@pytest.mark.parametrize("with_graphs", [False, True])
def test_tokens_are_those_of_a_run_without_drafts(method, with_graphs, files, load_cuda, expected):
    directory, drafters = files
    model = load_cuda(directory, draft_method=method, draft_path=drafters[method], num_draft_tokens=K)
    give_images(model._target, PROMPTS.values())
    runner = model.make_runner(LAYOUT)
    if with_graphs:
        record_drafts(runner)
    driver = add_all(Driver(runner, LAYOUT))

    drafts = proposals_of(driver.step(rest(driver), num_spec_tokens=K))
    assert all(len(drafts[handle]) == K for handle in PROMPTS)
    with Launches() as launches:
        while min(len(request.output) for request in driver.requests.values()) < NUM_TOKENS:
            drafts = proposals_of(driver.verify(drafts, num_spec_tokens=K))

    assert bool(launches.graphs) == with_graphs
    assert {handle: request.output[:NUM_TOKENS] for handle, request in driver.requests.items()} == expected


def test_a_head_drafts_at_the_positions_of_its_target_and_a_draft_model_at_places(files, load_cuda, monkeypatch):
    """A draft model reads placeholders as text, so that tokens behind an image have other positions than in its target."""
    found = {}
    for method, drafter in files[1].items():
        model = load_cuda(files[0], draft_method=method, draft_path=drafter, num_draft_tokens=K)
        give_images(model._target, PROMPTS.values())
        driver = add_all(Driver(model.make_runner(LAYOUT), LAYOUT))
        driver.step(rest(driver))
        positions = []

        def gathered(*arguments, _seen=positions, **options):
            values = gather_inputs(*arguments, **options)
            _seen.append(values[1].tolist())
            return values

        monkeypatch.setattr("tetrad.worker_svc.cuda.pass_inputs.gather_inputs", gathered)
        driver.step({0: 1}, num_spec_tokens=K)
        monkeypatch.undo()
        found[method] = [row[-1] for row in positions]

    place, shifted = len(PROMPTS[0].token_ids), int(PROMPTS[0].axes.max()) + 1
    assert found["eagle3"] == [shifted, shifted, shifted + 1, shifted + 2]
    assert found["draft_model"] == [shifted, place + 1, place + 2, place + 3]
