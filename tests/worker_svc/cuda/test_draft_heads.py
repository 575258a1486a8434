"""EAGLE-3 heads and MTP layers on the CUDA device, interpreted: the CPU device's drafts, and the tokens of the model alone."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.eagle3_files import save_eagle3
from tests.grids import grid
from tests.lora_files import save_lora
from tests.mtp_files import save_mtp
from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import host_only, record_drafts, record_graphs
from tests.worker_svc.cuda.draft_heads import (
    LAYERS,
    LAYOUT,
    ROOMY,
    K,
    accepted,
    change,
    driver_of,
    fill,
    rest,
    save_target,
)
from tests.worker_svc.cuda.launches import Launches
from tests.worker_svc.runner.proposals import proposals_of
from tetrad.services.errors import FailedPrecondition
from tetrad.worker_svc.core.lora import LoraLimits
from tetrad.worker_svc.cuda.device.offload import tensors_in
from tetrad.worker_svc.cuda.graphs import PassGraphs

FOUR = replace(LAYOUT, max_num_seqs=4)
KINDS = ("eagle3", "eagle3 of its own", "glm", "deepseek")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A model for EAGLE-3 heads: its directory, and transformers' own."""
    directory = tmp_path_factory.mktemp("target")
    return directory, save_target(directory)


@pytest.fixture(scope="module")
def files(target, tmp_path_factory):
    """For each kind of head the model's directory, and the options of a load with the head."""
    plain = save_eagle3(tmp_path_factory.mktemp("head"), eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    own = save_eagle3(tmp_path_factory.mktemp("own"), norm_before_residual=True, eagle_aux_hidden_state_layer_ids=[2, 0, 1])
    embeddings = torch.randn(320, 64, generator=torch.Generator().manual_seed(7))
    change(own / "model.safetensors", {"embed_tokens.weight": embeddings})
    found = {
        "eagle3": (target[0], {"draft_method": "eagle3", "draft_path": plain, "num_draft_tokens": K}),
        "eagle3 of its own": (target[0], {"draft_method": "eagle3", "draft_path": own, "num_draft_tokens": K}),
    }
    for kind, sizes in (("glm", {}), ("deepseek", {"kv_lora_rank": 280})):  # heads without kernels, as of published models
        directory = tmp_path_factory.mktemp(kind)
        save_mtp(directory, kind, **sizes)
        found[kind] = (directory, {"draft_method": "mtp", "num_draft_tokens": K})
    return found


@pytest.fixture(scope="module")
def headed(files, load_cuda):
    """Return a model with a head of a kind, loaded once."""
    models = {}

    def of(kind: str):
        if kind not in models:
            path, options = files[kind]
            models[kind] = load_cuda(path, **options)
        return models[kind]

    return of


@pytest.fixture(scope="module")
def history(headed):
    """Return the drafts and tokens of a run with a head of a kind, run once."""
    found = {}

    def of(kind: str):
        if kind not in found:
            found[kind] = run(driver_of(headed(kind)))
        return found[kind]

    return of


def run(driver: Driver) -> tuple[list[dict[int, list[int]]], dict[int, list[int]]]:
    """Return the drafts of each step, and the tokens of each request, of a run with most that can happen.

    Prompts come in chunks. Drafts are verified as they are, cut, and with a wrong one; some steps ask for none. One request is
    preempted, and goes on in the slot of one that has ended.
    """
    driver.step({0: 6, 1: 8}, num_spec_tokens=K)
    drafts = [proposals_of(driver.step(rest(driver), num_spec_tokens=K))]
    for step in range(3):
        chosen = {handle: [*drafts[-1].get(handle, [])[:step], *([1] if step < 2 else [])] for handle in driver.requests}
        driver.verify(chosen)
        drafts.append(proposals_of(driver.verify({handle: [] for handle in driver.requests}, num_spec_tokens=K)))
    ended, preempted = driver.remove(2), driver.remove(1)
    drafts.append(proposals_of(driver.verify({0: drafts[-1][0]}, num_spec_tokens=K)))
    resumed = driver.add(7, preempted.prompt + preempted.output, preempted.sampling)
    driver.step({0: 1, 7: 9}, num_spec_tokens=K)
    drafts.append(proposals_of(driver.step(rest(driver), num_spec_tokens=K)))
    return drafts, {0: driver.requests[0].output, 1: preempted.output + resumed.output, 2: ended.output}


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_those_of_the_cpu_device(kind, history, files, load):
    path, options = files[kind]

    expected = run(driver_of(load(path, **options)))

    assert history(kind) == expected
    assert sum(len(drafts) for step in expected[0] for drafts in step.values()) > 30


# Those of every kind are compared with the CPU device above.
@pytest.mark.parametrize("kind", grid(KINDS, lambda kind: kind in ("eagle3", "glm")))
def test_tokens_are_those_of_the_model_alone(kind, history, files, load_cuda):
    _, outputs = history(kind)

    alone = driver_of(load_cuda(files[kind][0])).generate(max(map(len, outputs.values())))

    assert outputs == {handle: alone[handle][: len(output)] for handle, output in outputs.items()}


@pytest.mark.parametrize("kind", ["eagle3", pytest.param("glm", marks=pytest.mark.exhaustive)])
def test_steps_and_drafts_that_are_replayed_as_graphs_are_the_same(kind, headed, history, monkeypatch):
    runner, replayed = headed(kind).make_runner(LAYOUT), Counter()
    record_graphs(runner._runner)
    record_drafts(runner)
    replay = PassGraphs.run

    def run_graph(graphs: PassGraphs, rows: np.ndarray, num_rows: int, drawn: bool = False) -> None:
        replayed[graphs is runner._drafts._drafting._drafts, num_rows] += 1
        replay(graphs, rows, num_rows, drawn)

    monkeypatch.setattr(PassGraphs, "run", run_graph)

    assert run(fill(Driver(runner, LAYOUT))) == history(kind)
    assert replayed[False, 3] >= 2, "plain decodes, of the target and of the head"
    assert replayed[False, 6] >= 2, "drafts as rows of their own, of both"
    assert replayed[True, 3] >= 1 <= replayed[True, 1], "drafts of three requests, one of them greedy, and of one"


@host_only
def test_a_recorded_step_with_drafts_is_three_graphs(headed):
    """The target, the head over the tokens of the step, and all drafts; the rest are copies and the choice of tokens."""
    runner = headed("eagle3").make_runner(ROOMY)
    record_graphs(runner._runner)
    record_drafts(runner)
    driver = fill(Driver(runner, ROOMY))
    driver.step(rest(driver), num_spec_tokens=K)
    plan = driver.plan(dict.fromkeys(driver.requests, 1), num_spec_tokens=K)

    with Launches() as launches:
        runner.execute(plan)

    assert launches.graphs == 3
    assert launches.kernels <= 14


@pytest.mark.parametrize("kind", ["eagle3", pytest.param("glm", marks=pytest.mark.exhaustive)])
def test_padding_of_a_graph_of_drafts_writes_nothing(kind, headed):
    """One request alone in a graph of four: its drafts are its own, and the others' tokens, keys and values do not change."""
    runner = headed(kind).make_runner(FOUR)
    record_drafts(runner)
    driver, drafting = fill(Driver(runner, FOUR)), runner._drafts._drafting
    driver.step(rest(driver), num_spec_tokens=K)
    handle_of, state, pages = driver.runner._batch.handles, runner._runner.state, runner._drafts._cache.layers
    before = [state.token_ids.clone(), *(layer.clone() for layer in pages)]

    with torch.inference_mode():
        drafting._drafts.run(np.empty((0, 3), np.int32), 4, True)

    assert handle_of[:3].tolist() == [0, 1, 2]
    assert torch.equal(state.token_ids, before[0])
    for layer, earlier in zip(pages, before[1:], strict=True):
        torch.testing.assert_close(layer[1:], earlier[1:], rtol=0, atol=0)  # block 0 is never read


def test_drafts_of_another_number_are_launched(headed, monkeypatch):
    """As many as `num_speculative_tokens_per_batch_size` allows."""
    runner = headed("eagle3").make_runner(LAYOUT)
    record_drafts(runner)
    driver, expected = fill(Driver(runner, LAYOUT)), driver_of(headed("eagle3"))
    monkeypatch.setattr(runner._drafts._drafting._drafts, "run", None)

    found, wanted = (proposals_of(each.step(rest(each), num_spec_tokens=K - 1)) for each in (driver, expected))

    assert found == wanted


def test_a_head_without_kernels_has_no_graphs(headed):
    runner = headed("deepseek").make_runner(LAYOUT)

    assert runner._drafts.num_graphs == 0


def test_steps_that_are_queued_before_results_are_read_bring_the_same_drafts(headed):
    driver, expected = driver_of(headed("eagle3")), driver_of(headed("eagle3"))
    for _ in range(3):
        last = expected.step(rest(expected), num_spec_tokens=K)

    steps = [driver.runner.execute(driver.plan(rest(driver), num_spec_tokens=K)) for _ in range(3)]
    results = [driver.take(step.wait()) for step in steps]

    assert proposals_of(results[-1]) == proposals_of(last)


def test_a_step_that_verifies_and_asks_for_no_drafts_does_not_settle(headed, monkeypatch):
    """The next plan waits for its result in any case."""
    driver, settled = driver_of(headed("eagle3")), []
    drafts = proposals_of(driver.step(rest(driver), num_spec_tokens=K))
    monkeypatch.setattr(driver.runner._runner, "settle", lambda: settled.append(1))

    driver.verify(drafts)

    assert settled == []


@pytest.mark.parametrize("kind", ["eagle3", "glm"])
def test_model_and_head_warm_up_sleep_and_wake(kind, files, load_cuda):
    path, options = files[kind]
    layout = replace(LAYOUT, max_num_seqs=2, max_num_batched_tokens=16)
    model, drafts = load_cuda(path, dtype="float16", enforce_eager=True, **options), []
    for _ in range(2):
        driver = Driver(model.make_runner(layout), layout)
        driver.add(0, range(20, 33))
        drafts.append(proposals_of(driver.step({0: 13}, num_spec_tokens=K)))
        model.sleep()
        model.wake_up()
    progress: list[tuple[int, int]] = []

    model.make_runner(layout).warm_up(lambda *done_of_all: progress.append(done_of_all))

    assert drafts[0] == drafts[1]
    assert progress[-1][0] == progress[-1][1] == len(progress)


def test_a_model_stays_asleep_if_its_head_finds_no_room(files, load_cuda, monkeypatch):
    path, options = files["eagle3"]
    model = load_cuda(path, dtype="float16", **options)
    weights = [tensor for tensor in tensors_in(model._target.decoder) if tensor.untyped_storage().resizable()]
    model.sleep()

    def fail() -> None:
        raise FailedPrecondition("The weights need 7 bytes to wake up; 0 are free.")

    with monkeypatch.context() as patch, pytest.raises(FailedPrecondition, match="0 are free"):
        patch.setattr(model._drafter, "wake_up", fail)
        model.wake_up()
    left_bytes = sum(tensor.untyped_storage().nbytes() for tensor in weights)
    model.wake_up()

    assert left_bytes == 0 < sum(tensor.untyped_storage().nbytes() for tensor in weights)


@host_only
def test_the_largest_step_is_run_with_the_head(headed, monkeypatch):
    model, seen = headed("eagle3"), []
    begin = model._drafter._head.head.begin
    monkeypatch.setattr(model._drafter._head.head, "begin", lambda states: seen.append(len(states)) or begin(states))

    assert model.worst_case_bytes(5) == 0  # host memory is not counted, but the step ran
    assert seen == [5, 5, 8], "the step, and the largest graph of each kind"


def test_a_block_and_the_weights_take_the_memory_of_the_head_too(headed, target, load_cuda):
    alone, both = load_cuda(target[0]), headed("eagle3")

    assert both.kv_groups(16)[0].block_size_bytes * LAYERS == alone.kv_groups(16)[0].block_size_bytes * (LAYERS + 1)
    assert both.weights_on_device_bytes == both.info.weights_size_bytes > alone.info.weights_size_bytes


def test_a_head_proposes_nothing_beyond_its_positions(target, load_cuda, tmp_path):
    head = save_eagle3(tmp_path, max_position_embeddings=14, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    driver = driver_of(load_cuda(target[0], draft_method="eagle3", draft_path=head))

    found = proposals_of(driver.step(rest(driver), num_spec_tokens=9))

    assert {handle: len(drafts) for handle, drafts in found.items()} == {0: 14 - 11, 1: 14 - 13}


def test_adapters_change_the_target_alone(target, files, load_cuda, tmp_path):
    """An adapter of the embeddings, too: the head reads the table without it."""
    path, options = files["eagle3"]
    adapter, limits = save_lora(tmp_path, target[1], "q_proj|embed_tokens"), LoraLimits(1, 8, 2)
    models = load_cuda(path, loras=limits), load_cuda(path, loras=limits, **options)
    for model in models:
        model.loras.install(1, model.loras.read(adapter))
    alone, driver = (driver_of(model, lora_id=1) for model in models)

    accepted(driver, 2)

    expected = alone.generate(max(len(request.output) for request in driver.requests.values()))
    assert all(request.output == expected[handle][: len(request.output)] for handle, request in driver.requests.items())


def test_a_target_that_is_quantized_on_request_keeps_a_head_in_floats(files, load_cuda):
    path, options = files["eagle3"]
    alone, driver = (driver_of(load_cuda(path, quantization="int8", **its)) for its in ({}, options))

    accepted(driver, 2)

    expected = alone.generate(max(len(request.output) for request in driver.requests.values()))
    assert all(request.output == expected[handle][: len(request.output)] for handle, request in driver.requests.items())


def test_a_quantized_mtp_layer_is_unpacked(tmp_path, load_cuda):
    """It drafts what the same weights in floats do."""
    paths = tmp_path / "floats", tmp_path / "packed"
    for path in paths:
        save_mtp(path, "glm")
        weights = load_file(path / "model.safetensors")
        name = "model.layers.3.eh_proj.weight"
        packed, scale = (weights[name] / 0.01).to(torch.float8_e4m3fn), torch.tensor([[0.01]])
        change(path / "model.safetensors", {name: packed.float() * scale})
    change(path / "model.safetensors", {name: packed, f"{name}_scale_inv": scale})
    config = json.loads((path / "config.json").read_text())
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    drafts = []
    for path in paths:
        driver = driver_of(load_cuda(path, draft_method="mtp"))
        drafts.append(proposals_of(driver.step(rest(driver), num_spec_tokens=K)))

    assert drafts[0] == drafts[1] != {}
