"""Layers that are offloaded (cpu_offload_gb): the same tokens from less memory of the device, whenever copies are done."""

from collections.abc import Callable

import pytest
import torch
from pydantic import ValidationError

from tests.worker_svc.conftest import Driver, save_tiny, tiny_config
from tests.worker_svc.cuda.conftest import TINY, record_graphs
from tetrad.services.errors import ModelError
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.cuda.device import weight_offload
from tetrad.worker_svc.cuda.device.accelerator import HostAccelerator
from tetrad.worker_svc.cuda.device.offload import tensors_in
from tetrad.worker_svc.cuda.device.weight_offload import WeightOffload
from tetrad.worker_svc.devices import open_device

NUM_LAYERS = 5
LAYOUT = KvLayout(num_blocks=20, block_size=16, max_model_len=32, max_num_seqs=2, max_num_batched_tokens=16)
GIB = 1 << 30


class LateAccelerator(HostAccelerator):
    """Copies beside the steps are done when somebody waits for them, no sooner."""

    def __init__(self) -> None:
        super().__init__()
        self.queued: list[Callable[[], None]] = []
        self._num_done = 0

    def beside(self, work: Callable[[], None]) -> int:
        self.queued.append(work)
        return len(self.queued)

    def wait_for(self, mark: int) -> None:
        for work in self.queued[self._num_done : mark]:
            work()
        self._num_done = max(self._num_done, mark)

    @property
    def are_all_done(self) -> bool:
        return self._num_done == len(self.queued)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny-offload")
    save_tiny(directory, tiny_config("LlamaForCausalLM", **{**TINY, "num_hidden_layers": NUM_LAYERS}))
    return directory


@pytest.fixture(scope="module")
def plain(path, load_cuda):
    return load_cuda(path)


def layer_bytes(model) -> int:
    """The matrices of one layer, in whichever form."""
    tensors = {each.data_ptr(): each for each in tensors_in(model.decoder._layers[0]) if each.dim() > 1}
    return sum(each.nbytes for each in tensors.values())


def device_bytes(model) -> int:
    """Memory of all tensors that layers have on the device."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors_in(model.decoder._layers)}
    return sum(storage.nbytes() for storage in storages.values())


def tokens(model, *, use_graphs: bool = False) -> dict[int, list[int]]:
    runner = model.make_runner(LAYOUT)
    if use_graphs:
        record_graphs(runner)
    driver = Driver(runner, LAYOUT)
    driver.add(1, [5, 6, 7])
    driver.add(2, [9])
    return driver.generate(2)


@pytest.fixture(scope="module")
def expected(plain):
    return tokens(plain)


@pytest.mark.parametrize("open_accelerator", [HostAccelerator, LateAccelerator])
@pytest.mark.parametrize("use_graphs", [False, True])
def test_offloaded_layers_give_the_same_tokens(open_accelerator, use_graphs, path, plain, expected, load_cuda):
    """Whether copies are done at once or at the last moment: none is used too early, and none written over too early."""
    model = load_cuda(path, cpu_offload_gb=1.5 * layer_bytes(plain) / GIB, open_accelerator=open_accelerator)

    found = tokens(model, use_graphs=use_graphs)

    assert len(model._offload._copies) == 4
    assert found == expected


def test_a_model_that_sleeps_and_wakes_up_goes_on_with_the_same_tokens(path, expected, load_cuda):
    model = load_cuda(path, cpu_offload_gb=1)

    model.sleep()
    left = device_bytes(model)
    model.wake_up()

    assert left == 0
    assert tokens(model) == expected


def test_quantized_layers_are_offloaded_like_others(path, load_cuda):
    models = [load_cuda(path, quantization="int8", cpu_offload_gb=gib) for gib in (0, 1)]

    wanted, found = (tokens(model) for model in models)

    assert found == wanted
    freed = device_bytes(models[0]) - device_bytes(models[1])
    assert freed == pytest.approx(3 * layer_bytes(models[0]), abs=2 * 8 * 256)


@pytest.mark.parametrize(("num_asked", "num_freed"), [(0.5, 1), (1, 1), (1.5, 2), (3, 3), (100, 3)])
def test_the_device_has_what_was_asked_for_as_far_as_layers_go(num_asked, num_freed, path, plain, load_cuda):
    """Two layers' room is left, whatever is asked for: that of the buffers."""
    size = layer_bytes(plain)

    model = load_cuda(path, cpu_offload_gb=num_asked * size / GIB)

    # Storages begin at multiples of 256 bytes in a buffer; each of a layer's four may lose some.
    assert device_bytes(plain) - device_bytes(model) == pytest.approx(num_freed * size, abs=2 * 4 * 256)
    freed = plain.weights_on_device_bytes - model.weights_on_device_bytes
    assert freed == pytest.approx(num_freed * size, abs=NUM_LAYERS * 4 * 256)


def test_a_draft_model_stays_on_the_device(path, plain, load_cuda):
    """The host has what was asked for once, not for each of both models."""
    size = layer_bytes(plain)

    model = load_cuda(path, cpu_offload_gb=3 * size / GIB, draft_method="draft_model", draft_path=path)

    freed = 2 * plain.weights_on_device_bytes - model.weights_on_device_bytes
    assert freed == pytest.approx(3 * size, abs=NUM_LAYERS * 4 * 256)


def taken(num_layers: int, size_bytes: int, accelerator: HostAccelerator | None = None) -> WeightOffload:
    """Layers of 1,024 bytes."""
    offload = WeightOffload(accelerator or HostAccelerator(), size_bytes, num_layers)
    for number in range(num_layers):
        matrix = torch.full((2, 128), float(number))
        offload.take([matrix], [matrix, torch.ones(7)])
    return offload


def test_layers_are_offloaded_evenly_among_the_others():
    assert list(taken(12, 1024)._number_of) == [3, 7, 11]
    assert list(taken(6, 2048)._number_of) == [1, 2, 4, 5]


def test_a_model_whose_layers_would_all_be_in_buffers_keeps_them_where_they_are():
    assert taken(2, 1024).freed_bytes == 0


def test_a_step_waits_for_all_that_it_queued_beside_it():
    """A recording must not leave a branch open."""
    accelerator = LateAccelerator()
    offload = taken(5, 4096, accelerator)

    list(offload.each([[torch.empty(0)] for _ in range(5)]))

    assert len(accelerator.queued) == 5
    assert accelerator.are_all_done


def test_a_step_that_fails_in_the_middle_harms_no_other():
    offload = taken(5, 4096)
    layers = [[torch.empty(0)] for _ in range(5)]

    next(offload.each(layers))
    firsts = [float(offload._buffers[number % 2].view(torch.float32)[0]) for number, _ in enumerate(offload.each(layers))]

    assert firsts == [0, 1, 2, 3, 4]


def test_a_negative_size_is_refused():
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        WorkerSettings(cpu_offload_gb=-1)


def test_the_cpu_device_refuses_it():
    with pytest.raises(ModelError, match=r"cpu_offload_gb 1\.5 is the cuda device's; the cpu device takes 0\."):
        open_device(WorkerSettings(device="cpu", cpu_offload_gb=1.5))


def test_a_host_without_room_is_told_with_the_numbers(path, monkeypatch, load_cuda):
    monkeypatch.setattr(weight_offload, "available_memory_bytes", lambda: 1000)

    with pytest.raises(ModelError, match=r"cpu_offload_gb 1 needs \d+ bytes of host memory for 5 of 5 layers; 1000 are"):
        load_cuda(path, cpu_offload_gb=1)
