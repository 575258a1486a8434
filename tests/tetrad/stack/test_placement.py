"""Placement: the share of the machine that each worker of a stack gets."""

from types import SimpleNamespace

import pytest

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.services.errors import InvalidRequest
from tetrad.stack.model_place import model_places
from tetrad.stack.placement import Placement
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.host import usable_cores

CPU = WorkerSettings(device="cpu")


def test_one_worker_gets_everything():
    placement = Placement(CPU, 1)

    assert placement.worker(CPU) == CPU
    assert placement.engine_core(EngineCoreSettings()) == EngineCoreSettings()
    assert placement.environment(0) == {}


def test_cores_and_memory_are_divided_among_the_workers():
    placement = Placement(CPU, 4)

    assert placement.worker(CPU).threads == max(1, usable_cores() // 4)
    assert placement.engine_core(EngineCoreSettings(gpu_memory_utilization=0.8)).gpu_memory_utilization == pytest.approx(0.2)


def test_a_chosen_number_of_threads_is_each_workers():
    settings = WorkerSettings(device="cpu", threads=3)

    assert Placement(settings, 2).worker(settings).threads == 3


def test_each_worker_sees_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7")
    settings = WorkerSettings(device="cuda")
    placement = Placement(settings, 2)

    assert [placement.environment(number)["CUDA_VISIBLE_DEVICES"] for number in range(2)] == ["5", "GPU-7"]
    assert placement.worker(settings) == settings
    assert placement.engine_core(EngineCoreSettings()) == EngineCoreSettings()


def test_more_workers_than_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")

    with pytest.raises(
        InvalidRequest,
        match="3 workers need a GPU each, and this machine shows 2: lower data_parallel_size, num_prefill_engines,",
    ):
        Placement(WorkerSettings(device="cuda"), 3)


@pytest.mark.parametrize("visible", ["-1", "", " "])
def test_a_machine_whose_gpus_are_hidden_is_divided_as_one_without(monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    settings = WorkerSettings(device="auto")
    placement = Placement(settings, 2)

    assert placement.worker(settings).threads == max(1, usable_cores() // 2)
    assert placement.environment(1) == {}


def test_gpus_behind_a_negative_number_are_hidden(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,-1,4")

    with pytest.raises(InvalidRequest, match="this machine shows 1"):
        Placement(WorkerSettings(device="cuda"), 2)


def test_services_are_numbered_through_and_the_first_have_plain_names(tmp_path):
    [place] = model_places(tmp_path, [(SimpleNamespace(num_engines=2, num_ranks=2), 1)])
    first, second = place.engines

    assert (first.name, second.name) == ("engine-core", "engine-core-2")
    assert first.admin_target == f"unix:{tmp_path}/engine-core-admin.sock"
    assert second.admin_target == f"unix:{tmp_path}/engine-core-admin-2.sock"
    assert first.worker_names == ["worker", "worker-2"]
    assert second.worker_names == ["worker-3", "worker-4"]


def test_a_further_model_has_sockets_of_its_own(tmp_path):
    one = SimpleNamespace(num_engines=1, num_ranks=1)

    first, second = model_places(tmp_path, [(one, 2), (one, 1)])

    assert first.tokenizer_targets == (f"unix:{tmp_path}/tokenizer.sock", f"unix:{tmp_path}/tokenizer-2.sock")
    assert second.tokenizer_names == ["tokenizer-3"]
    assert second.tokenizer_targets == (f"unix:{tmp_path}/model-2-tokenizer.sock",)
    assert second.engines[0].name == "engine-core-2"
    assert second.engine_targets == (f"unix:{tmp_path}/model-2-engine-core.sock",)
    assert second.engines[0].worker_names == ["worker-2"]
