"""Metrics of a worker: tokens of each expert, in a bounded number of series."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.worker_svc.families.tiny_models import save_family
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.devices.cpu import CpuDevice
from tetrad.worker_svc.observability.metrics import WorkerMetrics
from tetrad.worker_svc.worker.snapshot import Snapshot, State


@dataclass
class Exported:
    """What a worker with some counts exports."""

    counts: list[np.ndarray] = field(default_factory=list)

    def series(self, name: str) -> dict[str, float]:
        """Return the values of a metric by its expert, "" of one without."""
        snapshot = Snapshot(State.READY, "cpu", None, None, 0, 1, 0.0, 0, expert_tokens=self.counts)
        found = {}
        for family in WorkerMetrics(lambda: snapshot).registry.collect():
            for sample in family.samples:
                if sample.name == f"tetrad:worker_{name}":
                    found[sample.labels.get("expert", "")] = sample.value
        return found


def test_layers_are_added_up():
    exported = Exported([np.array([3, 1, 0, 0]), np.array([1, 1, 1, 1])])

    assert exported.series("expert_tokens_total") == {"0": 4, "1": 2, "2": 1, "3": 1}
    assert exported.series("expert_imbalance") == {"": 3.0}


def test_many_experts_are_counted_in_ranges():
    series = Exported([np.ones(300, np.int64)]).series("expert_tokens_total")

    assert len(series) == 100
    assert series["0-2"] == series["297-299"] == 3


def test_a_model_without_experts_has_no_series():
    assert Exported().series("expert_tokens_total") == {}
    assert Exported().series("expert_imbalance") == {"": 0.0}


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_a_program_counts_every_choice(kernels, tmp_path, make_driver):
    save_family(tmp_path, "qwen3_moe")
    device = CpuDevice(WorkerSettings(threads=1, cpu_kernels=kernels))
    model = device.load_model(LoadRequest("m", tmp_path), lambda *_: None)
    driver = make_driver(model)
    driver.add(0, range(3, 40))
    driver.generate(5)

    layers = model.expert_tokens

    assert len(layers) == 3
    assert [int(counts.sum()) for counts in layers] == [2 * (37 + 4)] * 3
