"""Workers of several engines that share the experts of a model: each engine gives the tokens of one worker with all experts."""

import contextlib
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.lora_files import merged, save_expert_lora, save_lora
from tests.mtp_files import save_mtp
from tests.worker_svc.conftest import LAYOUT, Driver
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.ranks.groups import SETTINGS, Group, Rank
from tests.worker_svc.ranks.test_drafters import run as run_drafted
from tests.worker_svc.ranks.test_expert_parallel import EVERY, WITH_EXPERTS
from tests.worker_svc.ranks.test_loras import LIMITS
from tests.worker_svc.ranks.test_tensor_parallel import PROMPTS, TOLERANCE, answers
from tetrad.services.errors import ModelError, Unavailable
from tetrad.services.settings import replaced
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.plan import SchedulerOutput
from tetrad.worker_svc.core.ranks import RankLost
from tetrad.worker_svc.core.result import ExecutedStep, ModelRunnerOutput, finished
from tetrad.worker_svc.devices import open_device
from tetrad.worker_svc.devices.cpu import CpuDevice

MODELS = WITH_EXPERTS if EVERY else ("mixtral", "qwen3_moe", "deepseek_v3", "llama4")
"""An expert a tensor, stacked experts, shared experts with groups and latent attention, weighted inputs."""


class Engine(Rank):
    """The only worker of an engine; the runner of a Driver."""

    def __init__(self, directory: Path, index: int, size: int) -> None:
        targets = tuple(f"unix:{directory}/experts-{number}.sock" for number in range(size))
        super().__init__(lambda: CpuDevice(replaced(SETTINGS, expert_targets=targets, expert_index=index)))

    def start(self, model: Path, **options: object) -> None:
        self.load(model, LAYOUT, expert_parallel=True, **options)

    def meet(self) -> None:
        self.compute.run(self.worker.warm_up, lambda *_: None)

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        return self.compute.run(lambda: finished(self.begin(plan)))

    def begin(self, plan: SchedulerOutput) -> ExecutedStep:
        return self.worker.cache.ready_runner().execute(plan)

    @property
    def _kv_cache(self) -> object:  # a Driver reads the KV groups' windows here
        return self.worker.cache.ready_runner()._kv_cache

    def close(self) -> None:
        self.worker.part.leave()
        self.compute.close()


@contextlib.contextmanager
def open_engines(directory: Path, model: Path, size: int, **options: object) -> Iterator[list[Engine]]:
    engines = [Engine(directory, index, size) for index in range(size)]
    try:
        for engine in engines:
            engine.start(model, **options)
        with ThreadPoolExecutor(size) as threads:
            list(threads.map(Engine.meet, engines))
        yield engines
    finally:
        for engine in engines:
            engine.close()


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("mixtral")
    save_family(directory, "mixtral")
    return directory


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_one_worker_with_all_experts(name, load, tmp_path):
    """One engine is idle at first; then both compute at once."""
    model = tmp_path / "model"
    save_family(model, name)
    alone = Driver(load(model).make_runner(LAYOUT), LAYOUT)
    expected = answers(alone)

    with open_engines(tmp_path, model, 2) as engines, ThreadPoolExecutor(2) as threads:
        first = Driver(engines[0])
        beside_an_idle_one = answers(first)
        drivers = [Driver(engine) for engine in engines]
        for engine in engines:
            engine.compute.run(engine.worker.cache.ready_runner().forget_all)
        at_once = list(threads.map(answers, drivers))
        layers = [engine.worker.snapshot().expert_tokens for engine in engines]
        infos = [engine.worker.snapshot().model for engine in engines]

    assert [beside_an_idle_one, *at_once] == [expected] * 3
    for handle, request in alone.requests.items():
        for (ids, values, _), (other_ids, other_values, _) in zip(
            request.logprobs, first.requests[handle].logprobs, strict=True
        ):
            assert ids.tolist() == other_ids.tolist()
            np.testing.assert_allclose(other_values, values, atol=TOLERANCE)
    whole = load(model).info
    assert all(info.num_parameters < whole.num_parameters for info in infos)
    assert all(counts.sum() > 0 for counts in layers[1])


def test_every_engine_gets_the_same_bits_whatever_the_others_compute(mixtral, tmp_path):
    def values(driver: Driver) -> list[list[float]]:
        answers(driver)
        return [each.tolist() for request in driver.requests.values() for _, each, _ in request.logprobs]

    with open_engines(tmp_path, mixtral, 3) as engines, ThreadPoolExecutor(3) as threads:
        alone = values(Driver(engines[2]))
        engines[2].compute.run(engines[2].worker.cache.ready_runner().forget_all)
        together = list(threads.map(values, map(Driver, engines)))

    assert together == [alone] * 3


def test_each_worker_reads_and_keeps_its_experts_alone(load, tmp_path):
    model = tmp_path / "model"
    save_family(model, "mixtral", num_local_experts=8, intermediate_size=512)
    whole = load(model).info

    with open_engines(tmp_path, model, 2) as engines:
        infos = [engine.worker.snapshot().model for engine in engines]

    assert all(info.num_parameters < 0.6 * whole.num_parameters for info in infos)


def test_a_lost_worker_fails_the_steps_of_the_others_until_its_successor_has_loaded(mixtral, tmp_path, monkeypatch):
    with open_engines(tmp_path, mixtral, 2) as engines:
        expected = answers(Driver(engines[0]))
        engines[0].compute.run(engines[0].worker.cache.ready_runner().forget_all)
        link = engines[0].worker._device._exchange.links[1]
        monkeypatch.setattr(link, "_connect_timeout_s", 0.1)

        engines[1].close()
        with pytest.raises(Unavailable, match=r"which holds other experts of the model, is (lost|not ready)") as lost:
            answers(Driver(engines[0]))
        assert engines[0].worker.step_failed(1, lost.value).reason == "EXPERTS_LOST"
        with pytest.raises(Unavailable, match="is not ready"):
            engines[0].meet()

        engines[1] = Engine(tmp_path, 1, 2)
        with pytest.raises(Unavailable, match="is not ready: It has not loaded its model"):
            engines[0].meet()
        engines[1].start(mixtral)
        engines[0].meet()
        engines[0].compute.run(engines[0].worker.cache.ready_runner().forget_all)
        assert answers(Driver(engines[0])) == expected


def test_a_worker_waits_for_one_that_loads_later(mixtral, tmp_path):
    engines = [Engine(tmp_path, index, 2) for index in range(2)]
    engines[0].start(mixtral)
    is_waiting = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        meeting = threads.submit(lambda: (is_waiting.set(), engines[0].meet()))
        is_waiting.wait()
        engines[1].start(mixtral)
        meeting.result()
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("change", ["config", "weights"])
def test_a_worker_with_other_weights_is_not_met(change, mixtral, tmp_path, monkeypatch):
    """Of weights of equal shapes, the files decide."""
    other = tmp_path / "other"
    if change == "config":
        save_family(other, "mixtral", rope_theta=500.0)
    else:
        shutil.copytree(mixtral, other)
    engines = [Engine(tmp_path, index, 2) for index in range(2)]
    for engine, model in zip(engines, (mixtral, other), strict=True):
        engine.start(model)
        [link] = engine.worker._device._exchange.links.values()
        monkeypatch.setattr(link, "_connect_timeout_s", 0.1)

    for engine in engines:
        with pytest.raises(Unavailable, match="is not ready: It has other weights, another place or another form"):
            engine.meet()

    engines[1].start(mixtral)
    engines[0].meet()
    for engine in engines:
        engine.close()


def test_a_dropped_model_is_freed_and_no_more_served(mixtral, tmp_path, monkeypatch):
    with open_engines(tmp_path, mixtral, 2) as engines:
        [link] = engines[0].worker._device._exchange.links.values()
        monkeypatch.setattr(link, "_connect_timeout_s", 0.1)

        engines[1].compute.run(engines[1].worker.sleep, 2)
        assert engines[1].worker._device._exchange.server._held() is None
        with pytest.raises(Unavailable, match=r"which holds other experts of the model, is (lost|not ready)"):
            answers(Driver(engines[0]))

        engines[1].compute.run(engines[1].worker.wake_up, [])
        engines[0].meet()


@contextlib.contextmanager
def open_groups(directory: Path, model: Path, shape: tuple[int, int]) -> Iterator[tuple[list[Group], list[Driver]]]:
    """Run two engines, each with a group of two ranks."""
    groups = []
    for engine in range(2):
        targets = iter([tuple(f"unix:{directory}/e{each}-{rank}.sock" for each in range(2)) for rank in range(2)])

        def make_device(engine: int = engine, targets: Iterator[tuple[str, ...]] = targets) -> CpuDevice:
            return CpuDevice(replaced(SETTINGS, expert_targets=next(targets), expert_index=engine))

        group = Group(f"unix:{directory}/{engine}-{{}}.sock", *shape, make_device)
        group.join()
        groups.append(group)
    try:
        layouts = [group.load(model, expert_parallel=True) for group in groups]
        yield groups, [Driver(group, layout) for group, layout in zip(groups, layouts, strict=True)]
    finally:
        for group in groups:
            for rank in group.ranks:
                rank.worker.part.leave()
            group.close()


SHAPES = pytest.mark.parametrize("shape", [(2, 1), (1, 2)], ids=["shards", "stages"])


@SHAPES
def test_ranks_of_several_engines_share_experts(shape, load, tmp_path):
    """Each rank shares those experts, of its part of the model, with the same rank of the other engine."""
    model = tmp_path / "model"
    save_family(model, "deepseek_v3")
    expected = answers(Driver(load(model).make_runner(LAYOUT), LAYOUT))

    with open_groups(tmp_path, model, shape) as (_, drivers), ThreadPoolExecutor(2) as threads:
        found = list(threads.map(answers, drivers))

    assert found == [expected] * 2


@SHAPES
def test_a_member_that_loses_a_worker_of_another_engine_is_no_crash_of_its_own_engine_alone(
    shape, mixtral, tmp_path, monkeypatch
):
    """The leader only sees that the member has left the group."""
    with open_groups(tmp_path, mixtral, shape) as (groups, drivers):
        answers(drivers[0])
        groups[0].each(lambda worker: worker.cache.ready_runner().forget_all())
        leader, member = (rank.worker for rank in groups[0].ranks)
        monkeypatch.setattr(member._device._exchange.links[1], "_connect_timeout_s", 0.1)
        groups[1].ranks[1].worker.part.leave()

        with pytest.raises(RankLost) as lost:
            answers(Driver(groups[0], drivers[0].layout))

    assert leader.step_failed(1, lost.value).reason == "EXPERTS_LOST"


def test_adapters_of_other_modules_than_experts_are_applied(tmp_path, assert_greedy):
    reference = save_family(tmp_path / "model", "qwen3_moe")
    adapter = save_lora(tmp_path / "adapter", reference, "q_proj|o_proj", rank=4, seed=3)
    of_experts = save_expert_lora(tmp_path / "of-experts", reference, rank=4, seed=3)

    with open_engines(tmp_path, tmp_path / "model", 2, loras=LIMITS) as engines:
        loras = engines[0].compute.run(engines[0].worker.model_loras)
        with pytest.raises(
            ModelError, match=r"module model\.layers\.0\.mlp\.experts\.0\.\w+, which cannot be adapted on several"
        ):
            loras.read(of_experts)
        engines[0].compute.run(loras.install, 1, loras.read(adapter))
        driver = Driver(engines[0])
        driver.add(0, PROMPTS[0])
        driver.add(1, PROMPTS[0], lora_id=1)
        outputs = driver.generate(6)

    assert_greedy(reference, PROMPTS[0], outputs[0])
    assert_greedy(merged(reference, adapter), PROMPTS[0], outputs[1])


@pytest.mark.parametrize("method", ["draft_model", "mtp"])
def test_drafters_propose_what_they_propose_to_one_worker(method, cpu, tmp_path):
    """A drafter is whole on each worker."""
    model = tmp_path / "model"
    model.mkdir()
    save_mtp(model, "deepseek")
    options = {"draft_method": method} | ({"draft_model": str(model)} if method == "draft_model" else {})
    draft_path = model if method == "draft_model" else None
    request = LoadRequest("m", model, draft_method=method, draft_path=draft_path)
    expected = run_drafted(Driver(cpu.load_model(request, lambda *_: None).make_runner(LAYOUT)))

    with open_engines(tmp_path, model, 2, **options) as engines:
        found = run_drafted(Driver(engines[1]))

    assert found == expected


def test_a_model_that_pools_is_refused(tmp_path):
    model = tmp_path / "model"
    save_family(model, "qwen3_moe")
    engine = Engine(tmp_path, 0, 2)
    with pytest.raises(ModelError, match="data_parallel_size 2: a model that pools has all experts on each worker"):
        engine.start(model, runner="pooling")
    engine.close()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"expert_targets": ("unix:/a", "127.0.0.1:1")}, "must be Unix sockets .* got '127.0.0.1:1'"),
        ({"expert_targets": ("unix:/a", "unix:/a")}, "must not name one socket twice"),
        ({"expert_targets": ("unix:/a", "unix:/b"), "expert_index": 2}, "must be below the 2 expert_targets, got 2"),
    ],
    ids=["host", "twice", "index"],
)
def test_targets_of_experts_are_sockets_of_this_machine(values, text):
    with pytest.raises(ValueError, match=text):
        WorkerSettings(**values)


def test_a_simulated_device_refuses_to_share_experts():
    with pytest.raises(ModelError, match="data_parallel_size 2: the sim device has all experts on each worker"):
        open_device(WorkerSettings(device="sim", expert_targets=("unix:/a", "unix:/b")))
