"""Drafters on several ranks of the cuda device, interpreted, with gloo in place of NCCL: the proposals and tokens of one rank.

The reference is the cpu device, whose proposals are those of one rank of the cuda device (test_draft_heads.py).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import get_ident

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.eagle3_files import save_eagle3
from tests.grids import grid
from tests.lora_files import save_lora
from tests.mtp_files import save_mtp, save_qwen_mtp
from tests.worker_svc.conftest import Driver, save_tiny, tiny_config
from tests.worker_svc.cuda.conftest import host_only, record_drafts, record_graphs
from tests.worker_svc.cuda.draft_heads import SIZES, K, change, rest
from tests.worker_svc.cuda.test_ranks import device, recording, spoil_second_row
from tests.worker_svc.ranks.groups import Group, open_group
from tests.worker_svc.ranks.test_loras import LIMITS, install
from tests.worker_svc.runner.proposals import proposals_of
from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import GrammarRows, SamplingSpec
from tetrad.worker_svc.core.ranks import Shard, Stage
from tetrad.worker_svc.core.result import ModelRunnerOutput
from tetrad.worker_svc.cuda.graphs import PassGraphs
from tetrad.worker_svc.devices.cuda import CudaDevice
from tetrad.worker_svc.devices.cuda_drafted import CudaDrafter
from tetrad.worker_svc.layers.collectives import Collectives
from tetrad.worker_svc.runner.rank_channels import RankChannels
from tetrad.worker_svc.worker.worker import Worker

pytestmark = host_only  # NCCL wants a card for each rank

LAYOUT = KvLayout(num_blocks=12, block_size=32, max_model_len=64, max_num_seqs=2, max_num_batched_tokens=24)
"""A layout in which every draft has a block."""
SAMPLINGS = (SamplingSpec(temperature=0.0, num_logprobs=2), SamplingSpec(seed=6, temperature=0.7, top_p=0.9))
EVEN = np.full(10, 0x55555555, np.uint32)
KINDS = ("draft_model", "eagle3", "eagle3 of its own", "glm", "deepseek", "qwen3_next")
Options = dict[str, str]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Callable[[str], tuple[Path, Options]]:
    """Return a function: kind of drafter -> the model's directory, and the options of a load with the drafter."""
    target = tmp_path_factory.mktemp("target")
    save_tiny(target, tiny_config("LlamaForCausalLM", **SIZES, num_hidden_layers=2))

    def of(kind: str) -> tuple[Path, Options]:
        directory = tmp_path_factory.mktemp("drafter")
        if kind == "draft_model":
            return target, {"draft_method": kind, "draft_model": str(target)}
        if kind.startswith("eagle3"):
            save_eagle3(directory, eagle_aux_hidden_state_layer_ids=[1, 0, 1])
            if kind == "eagle3 of its own":
                change(directory / "model.safetensors", {"embed_tokens.weight": random(320, 64)})
            return target, {"draft_method": "eagle3", "draft_model": str(directory)}
        save_qwen_mtp(directory, kind) if kind == "qwen3_next" else save_mtp(directory, kind)
        return directory, {"draft_method": "mtp"}

    return of


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)) * 0.2


@contextmanager
def loaded(
    directory: Path, path: Path, options: Options, size: int = 2, make_device: Callable[[], CudaDevice] = device, **more: object
) -> Iterator[tuple[Group, KvLayout]]:
    """Run ranks with a model and its drafter; yield them and their layout."""
    with open_group(directory, size, make_device=make_device) as group:
        yield group, group.load(path, LAYOUT, dtype="float32", num_draft_tokens=K, **options, **more)


@pytest.fixture(scope="module")
def one_rank(cpu) -> Callable[..., Driver]:
    """Return a function: (path, options of the load, layout) -> a driver of the model on one rank."""

    def driver_of(path: Path, options: Options, layout: KvLayout = LAYOUT) -> Driver:
        draft = Path(options["draft_model"]) if "draft_model" in options else None
        model = cpu.load_model(LoadRequest("m", path, draft_method=options["draft_method"], draft_path=draft), lambda *_: None)
        return Driver(model.make_runner(layout), layout)

    return driver_of


def run(driver: Driver) -> list[dict[int, list[int]]]:
    """Return the proposals of each step of a run with most that can happen.

    Prompts come in chunks. Drafts are verified as they are, with a wrong one, and with masks of a grammar; a step asks for
    none. A request is preempted, and comes again with its output.
    """
    for handle, sampling in enumerate(SAMPLINGS):
        driver.add(handle, range(20 + handle, 30 + 3 * handle), sampling)
    driver.step({0: 6, 1: 8}, num_spec_tokens=K)
    found = [proposals_of(driver.step(rest(driver), num_spec_tokens=K))]
    found.append(proposals_of(driver.verify(found[-1], num_spec_tokens=K)))
    driver.verify({0: [*found[-1][0][:1], 1], 1: found[-1][1]})
    preempted = driver.remove(1)
    again = driver.add(1, preempted.prompt, preempted.sampling)
    again.output, again.num_tokens = preempted.output, len(preempted.prompt) + len(preempted.output)
    found.append(proposals_of(driver.step(rest(driver), num_spec_tokens=K)))
    masks = GrammarRows(np.full(K + 1, 1), np.stack([EVEN] * (K + 1)))
    found.append(proposals_of(driver.verify(found[-1], num_spec_tokens=K, grammar=masks)))
    return found


def start(driver: Driver, **fields: object) -> ModelRunnerOutput:
    """Compute two prompts, and return the result with the first proposals."""
    for handle, sampling in enumerate(SAMPLINGS):
        driver.add(handle, range(20 + handle, 30 + 3 * handle), sampling, **fields)
    return driver.step(rest(driver), num_spec_tokens=K)


def outputs_of(driver: Driver) -> dict[int, list[int]]:
    return {handle: request.output for handle, request in driver.requests.items()}


@pytest.mark.parametrize("kind", grid(KINDS, lambda kind: kind in ("draft_model", "glm")))
def test_proposals_and_tokens_are_those_of_one_rank(kind, files, one_rank, tmp_path):
    path, options = files(kind)
    with loaded(tmp_path, path, options) as (group, layout):
        together, alone = Driver(group, layout), one_rank(path, options, layout)
        expected = run(alone)
        found = run(together)

    assert found == expected
    assert outputs_of(together) == outputs_of(alone)
    assert any(len(drafts) == K for step in expected for drafts in step.values())
    for (ids, values, _), (other_ids, other_values, _) in zip(
        alone.requests[0].logprobs, together.requests[0].logprobs, strict=True
    ):
        assert ids.tolist() == other_ids.tolist()
        np.testing.assert_allclose(other_values, values, atol=1e-4)


def test_four_ranks_draft_as_one(files, one_rank, tmp_path):
    """Two of them have the same keys and values."""
    path, options = files("eagle3")
    with loaded(tmp_path, path, options, size=4) as (group, layout):
        together, alone = Driver(group, layout), one_rank(path, options, layout)
        first = [proposals_of(start(driver)) for driver in (together, alone)]

    assert first[0] == first[1]
    assert [len(drafts) for drafts in first[0].values()] == [K, K]


def test_drafts_that_are_replayed_as_graphs_are_the_same_in_every_group_that_the_ranks_join(
    files, one_rank, tmp_path, monkeypatch
):
    """Every rank replays the same graphs in the same order, so their exchanges meet."""
    path, options = files("eagle3")
    replayed: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
    replay = PassGraphs.run

    def run_graph(graphs: PassGraphs, rows: np.ndarray, num_rows: int, kind: bool = False) -> None:
        replayed[get_ident()].append((len(graphs.sizes), num_rows, kind))
        replay(graphs, rows, num_rows, kind)

    monkeypatch.setattr(PassGraphs, "run", run_graph)
    with loaded(tmp_path, path, options, make_device=recording) as (group, layout):
        record(group)
        together, alone = Driver(group, layout), one_rank(path, options, layout)
        expected = run(alone)
        assert run(together) == expected
        models = [rank.worker.loaded_model() for rank in group.ranks]

        group.join()
        group.load(path, LAYOUT, dtype="float32", num_draft_tokens=K, **options)
        record(group)

        assert [rank.worker.loaded_model() for rank in group.ranks] == models
        assert proposals_of(start(Driver(group, layout))) == proposals_of(start(one_rank(path, options, layout)))

    first, second = replayed.values()
    assert first == second
    assert len(first) > 12


def record(group: Group) -> None:
    """Record the graphs of all ranks; what is recorded does not run."""
    for rank in group.ranks:
        runner = rank.worker.cache.runner._runner
        rank.compute.run(record_graphs, runner._runner)
        rank.compute.run(record_drafts, runner)


def test_ranks_measure_and_warm_up_with_their_drafters(files, tmp_path):
    """All that is recorded runs on all ranks at once, so the same exchanges meet."""
    path, options = files("eagle3")
    layout = replace(LAYOUT, max_num_seqs=1, max_num_batched_tokens=8)
    with open_group(tmp_path, 2, make_device=recording) as group:
        group.load(path, layout, dtype="float32", num_draft_tokens=1, **options)
        free = group.each(lambda worker: worker.available_memory(0.9, 4))
        group.load(path, layout, dtype="float32", num_draft_tokens=1, **options)
        group.warm_up()
        assert len(set(free)) == 1


def test_a_head_is_divided_and_a_draft_model_is_whole_on_every_rank(files, load_cuda, tmp_path):
    """A part of a head has half of its matrices and of its keys and values, and its norms."""
    path, options = files("eagle3 of its own")
    smaller = load_cuda(path).info.weights_size_bytes
    alone = load_cuda(path, draft_method="eagle3", draft_path=Path(options["draft_model"]))._drafter
    with open_group(tmp_path, 2, make_device=device) as group:
        group.load(path, LAYOUT, dtype="float32", **options)
        heads = [drafter_of(worker) for worker in group.each(lambda worker: worker)]
        group.load(path, LAYOUT, dtype="float32", draft_method="draft_model", draft_model=str(path))
        models = [drafter_of(worker) for worker in group.each(lambda worker: worker)]

    for head in heads:
        assert head.kv_cache_spec.block_size_bytes(32) * 2 == alone.kv_cache_spec.block_size_bytes(32)
        assert 0.5 < head.weights_on_device_bytes / alone.weights_on_device_bytes < 0.7
    assert [model.weights_on_device_bytes for model in models] == [smaller, smaller]


def drafter_of(worker: Worker) -> CudaDrafter:
    return worker.loaded_model()._part._drafter


def test_a_head_that_cannot_be_divided_is_whole_on_every_rank(files, one_rank, tmp_path):
    path, options = files("eagle3")
    odd = Path(options["draft_model"])
    save_eagle3(odd, intermediate_size=81, eagle_aux_hidden_state_layer_ids=[1, 0, 1])
    shapes = {"gate": (81, 64), "up": (81, 64), "down": (64, 81)}
    change(odd / "model.safetensors", {f"midlayer.mlp.{name}_proj.weight": random(*shape) for name, shape in shapes.items()})

    with loaded(tmp_path, path, options) as (group, layout):
        found = proposals_of(start(Driver(group, layout)))

    assert found == proposals_of(start(one_rank(path, options)))


def test_ranks_sleep_and_wake_with_their_drafters(files, one_rank, tmp_path):
    path, options = files("eagle3")
    with loaded(tmp_path, path, options) as (group, layout):
        group.each(lambda worker: worker.sleep(1))
        group.each(lambda worker: worker.wake_up(()))
        found = proposals_of(start(Driver(group, layout)))

    assert found == proposals_of(start(one_rank(path, options)))


def test_a_request_that_fails_on_the_device_leaves_the_drafts_of_all_ranks(files, one_rank, tmp_path):
    """The leader alone finds the failure, when the ranks have drafted for the request."""
    path, options = files("eagle3")
    alone = one_rank(path, options)
    alone.add(0, [5, 6, 7])
    alone.step({0: 3})
    with loaded(tmp_path, path, options) as (group, layout):
        driver = Driver(group, layout)
        driver.add(0, [5, 6, 7])
        driver.add(1, [9, 9])
        for rank in group.ranks:
            spoil_second_row(rank.worker.cache.runner._runner._runner)
        failed = group.execute(driver.plan({0: 3, 1: 2}, num_spec_tokens=K))
        driver.remove(1)
        driver.take(replace(failed, failures=()))
        found = proposals_of(driver.verify({0: []}, num_spec_tokens=K))

    assert [handle for handle, _ in failed.failures] == [1]
    assert found == proposals_of(alone.verify({0: []}, num_spec_tokens=K))
    assert outputs_of(driver) == outputs_of(alone)


def test_adapters_change_the_target_alone(files, load, tmp_path):
    """An adapter of the embeddings, too: the head reads the tables of all ranks without it."""
    path, options = files("eagle3")
    adapter = save_lora(tmp_path / "adapter", AutoModelForCausalLM.from_pretrained(path), "q_proj|embed_tokens")
    alone = load(path, loras=LIMITS, draft_method="eagle3", draft_path=Path(options["draft_model"]))
    alone.loras.install(1, alone.loras.read(adapter))
    with loaded(tmp_path, path, options, loras=LIMITS) as (group, layout):
        [_] = set(install(group, 1, adapter))
        found, expected = (
            proposals_of(start(driver, lora_id=1))
            for driver in (Driver(group, layout), Driver(alone.make_runner(layout), layout))
        )

    assert found == expected


def test_a_pipeline_takes_no_drafter(files):
    path, options = files("eagle3")
    stage = device()
    stage.set_up()
    stage._ranks = RankChannels(Shard(0, 1), Stage(0, 2), Collectives(Shard(0, 1)))

    with pytest.raises(ModelError, match="'eagle3' is not supported for the cuda device with pipeline_parallel_size 2"):
        stage.load_model(
            LoadRequest("m", path, draft_method="eagle3", draft_path=Path(options["draft_model"])), lambda *_: None
        )
