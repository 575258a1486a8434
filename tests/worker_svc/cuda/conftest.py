"""A CUDA device on host memory: its kernels are interpreted, so models are tiny and steps few.

Where there is a card, the same tests run on it, except those that depend on the accelerator of host memory.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from tests.worker_svc import fast_interpreter
from tests.worker_svc.conftest import Driver, save_tiny, tiny_config
from tests.worker_svc.cuda.watching import Watch, watch_calls
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import SchedulerOutput
from tetrad.worker_svc.core.result import finished
from tetrad.worker_svc.cuda.device import accelerator
from tetrad.worker_svc.cuda.device.accelerator import HostAccelerator, _HostGraph
from tetrad.worker_svc.cuda.drafting_runner import DeviceDraftingRunner
from tetrad.worker_svc.cuda.runner import CudaModelRunner
from tetrad.worker_svc.devices.cuda import CudaDevice
from tetrad.worker_svc.devices.cuda_model import CudaModel
from tetrad.worker_svc.kernels import draw, truncation

fast_interpreter.install()

host_only = pytest.mark.skipif(torch.cuda.is_available(), reason="the test depends on the accelerator of host memory")
if torch.cuda.is_available():
    HostAccelerator = accelerator.HostAccelerator = accelerator.CudaAccelerator  # type: ignore[assignment,misc] # for all modules

SMALL = KvLayout(num_blocks=80, block_size=16, max_model_len=256, max_num_seqs=8, max_num_batched_tokens=512)
TINY = {"num_hidden_layers": 2, "hidden_size": 48, "intermediate_size": 40, "num_attention_heads": 3, "num_key_value_heads": 1}
"""Grouped queries, and sizes that fill no power of two."""


@pytest.fixture(autouse=True)
def few_blocks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny vocabulary has two blocks; the interpreter would compute 14 more beside them. The tests of kernels have all 16."""
    for module in () if torch.cuda.is_available() else (draw, truncation):
        monkeypatch.setattr(module, "BLOCKS_AT_ONCE", 2)


@pytest.fixture(scope="session")
def load_cuda() -> Callable[..., CudaModel]:
    """Return a loader: (path, options of the load, settings of the worker) -> the model, in float32 unless asked otherwise."""

    def load(
        path: Path,
        *,
        enforce_eager: bool = False,
        cpu_offload_gb: float = 0,
        open_accelerator: Callable[[], HostAccelerator] = HostAccelerator,
        **options: object,
    ) -> CudaModel:
        settings = WorkerSettings(device="cuda", enforce_eager=enforce_eager, cpu_offload_gb=cpu_offload_gb)
        device = CudaDevice(settings, open_accelerator)
        device.set_up()
        return device.load_model(LoadRequest(str(path), path, **{"dtype": "float32", **options}), lambda *_: None)

    return load


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return watch_calls(monkeypatch)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny-cuda")
    save_tiny(directory, tiny_config("LlamaForCausalLM", **TINY))
    return directory


@pytest.fixture(scope="session")
def tiny_cuda(tiny_path: Path, load_cuda: Callable[..., CudaModel]) -> CudaModel:
    return load_cuda(tiny_path)


def layout_of(model: CudaModel, layout: KvLayout = SMALL) -> KvLayout:
    """Return a layout whose blocks have room for the states of a model, if it has any."""
    return replace(layout, block_size=max(group.block_size for group in model.kv_groups(16)) or 16)


def record_graphs(runner: CudaModelRunner) -> None:
    """Record the graphs of a runner, without the dummy steps of its warm-up. As on a GPU, what is recorded does not run.

    Tests of warm-ups run all that is recorded.
    """
    with mock.patch.object(HostAccelerator, "capture", lambda _, work: _HostGraph(work)):
        runner.record(lambda: runner._passes.record(lambda: None), "The graphs")


def record_drafts(runner: DeviceDraftingRunner) -> None:
    """Record the graphs of a runner's drafter likewise. test_no_sync.py runs what is recorded."""
    with mock.patch.object(HostAccelerator, "capture", lambda _, work: _HostGraph(work)):
        runner._runner.record(lambda: runner._drafts.record(lambda: None), "The drafter's graphs")


class PipelinedDriver(Driver):
    """Keeps one step on the device while it plans the next, as the engine core does."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self._ahead: object | None = None

    def launch(self, plan: SchedulerOutput) -> None:
        behind, self._ahead = self._ahead, self.runner.execute(plan)
        if behind is not None:
            self.take(finished(behind))

    def drain(self) -> None:
        if self._ahead is not None:
            self.take(finished(self._ahead))
            self._ahead = None
