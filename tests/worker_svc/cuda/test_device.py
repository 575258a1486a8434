"""The CUDA device: one-line refusals of unsupported cases, and the memory left for keys and values."""

import pytest
import torch

from tests.worker_svc.conftest import Driver, save_tiny, tiny_config
from tests.worker_svc.cuda.conftest import SMALL, host_only
from tetrad.services.errors import FailedPrecondition, ModelError
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.cuda.device.accelerator import HostAccelerator
from tetrad.worker_svc.cuda.sampling import penalties
from tetrad.worker_svc.cuda.torch_decoder import TorchDecoder
from tetrad.worker_svc.devices import open_device
from tetrad.worker_svc.devices.cuda import CudaDevice
from tetrad.worker_svc.kv_cache.swap_pool import SwapPool

CUDA = WorkerSettings(device="cuda")


def nothing(done: int, total: int) -> None:
    """Progress that nobody watches."""


class SmallCard(HostAccelerator):
    """A card on which a step takes 100,000 bytes."""

    def __init__(self, free: int, total: int) -> None:
        super().__init__()
        self._free, self._total = free, total

    def memory(self) -> tuple[int, int]:
        return self._free, self._total

    def peak_bytes(self, work: object) -> int:
        return 100_000


def loaded(accelerator: HostAccelerator, path, settings=CUDA):
    device = CudaDevice(settings, lambda: accelerator)
    device.set_up()
    return device, device.load_model(LoadRequest(str(path), path, dtype="float32"), nothing)


def test_a_torch_for_amd_gpus_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")

    with pytest.raises(ModelError, match=r"does not run on AMD GPUs: this torch, .*, is built for ROCm"):
        CudaDevice(WorkerSettings(device="cuda"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_without_a_gpu_one_line_says_so():
    with pytest.raises(ModelError, match="needs an NVIDIA GPU and a torch built for CUDA; this machine has no usable one"):
        open_device(CUDA)


def test_an_old_gpu_is_refused_by_its_capability(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")

    with pytest.raises(ModelError, match=r"Tesla T4 has compute capability 7\.5; the cuda device needs 8\.0 or higher"):
        CudaDevice(CUDA)


def test_auto_means_the_cpu_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert open_device(WorkerSettings(device="auto", threads=1)).name == "cpu"


def test_a_type_that_is_not_known_is_named(tiny_path):
    device = CudaDevice(CUDA, HostAccelerator)
    device.set_up()

    with pytest.raises(
        ModelError, match="dtype int3 is not supported on the cuda device; use auto, bfloat16, float16, float32"
    ):
        device.load_model(LoadRequest("tiny", tiny_path, dtype="int3"), nothing)


def test_auto_is_bfloat16(tiny_path):
    device = CudaDevice(CUDA, HostAccelerator)
    device.set_up()

    model = device.load_model(LoadRequest("tiny", tiny_path), nothing)

    assert model.info.dtype == "bfloat16"
    assert model.kv_groups(16)[0].dtype == "bfloat16"
    assert model.info.weights_size_bytes == 2 * model.info.num_parameters


def test_keys_and_values_get_what_the_utilization_leaves(tiny_path):
    device, model = loaded(SmallCard(free=700_000, total=1_000_000), tiny_path)

    # 90% of the card, less the 300,000 that are taken, less the step and the graphs.
    assert device.available_memory(model, utilization=0.9, max_num_batched_tokens=64) == 400_000


def test_keys_and_values_get_what_is_set_if_the_card_has_it(tiny_path):
    settings = CUDA.model_copy(update={"kv_cache_memory_gib": 400_000 / 2**30})
    device, model = loaded(SmallCard(free=700_000, total=1_000_000), tiny_path, settings)

    assert device.available_memory(model, utilization=0.9, max_num_batched_tokens=64) == 400_000
    with pytest.raises(FailedPrecondition, match=r"kv_cache_memory_gib 0\.0003\d* does not fit: 0\.0 GiB can be had"):
        device.available_memory(model, utilization=0.6, max_num_batched_tokens=64)


def test_a_card_without_room_is_refused_with_the_numbers(tiny_path):
    device, model = loaded(SmallCard(free=150_000, total=1_000_000), tiny_path)

    with pytest.raises(
        FailedPrecondition,
        match=r"gpu_memory_utilization 0\.9 .* 1000000 bytes leaves nothing .* graphs 200000, and 150000 are",
    ):
        device.available_memory(model, utilization=0.9, max_num_batched_tokens=64)


@host_only
def test_the_largest_step_is_run_to_see_what_it_takes(tiny_cuda, monkeypatch):
    """With every request penalised, and with blocks on their way to the host."""
    lines, swapped = [], []
    monkeypatch.setattr(penalties, "apply_penalties", lambda logits, seen, rows: lines.append((len(rows), len(seen))))
    monkeypatch.setattr(SwapPool, "swap_out", lambda _, blocks, host_blocks: swapped.append(len(blocks)))

    assert tiny_cuda.worst_case_bytes(3) == 0  # host memory is not counted, but the step ran

    assert lines == [(3, 4)]
    assert swapped == [32]


def test_a_largest_step_that_does_not_fit_is_refused_with_the_numbers(tiny_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    device, model = loaded(SmallCard(free=1000, total=1_000_000), tiny_path)
    monkeypatch.setattr(SmallCard, "peak_bytes", full)

    with pytest.raises(
        FailedPrecondition, match=r"max_num_batched_tokens 64\) does not fit .* \d+ bytes, and 1000 of 1000000 are free; lower"
    ):
        device.available_memory(model, utilization=0.9, max_num_batched_tokens=64)


def test_a_cache_that_does_not_fit_is_refused_with_the_numbers(tiny_path):
    _, model = loaded(SmallCard(free=1000, total=1_000_000), tiny_path)

    with pytest.raises(
        FailedPrecondition, match=r"num_blocks 80 of block_size 16 needs \d+ bytes; 1000 of the device's 1000000 are"
    ):
        model.make_runner(SMALL)


def test_a_model_larger_than_the_card_is_refused(tiny_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("tetrad.worker_svc.devices.cuda_programs.KernelDecoder", full)

    with pytest.raises(ModelError, match=r"does not fit .*: its files have \d+ bytes, the device has 1000000, of which 5"):
        loaded(SmallCard(free=5, total=1_000_000), tiny_path)


@pytest.mark.parametrize(
    ("has_fp8", "asked", "dtype"),
    [
        (True, "fp8", "float8_e4m3fn"),
        (False, "fp8", "float8_e5m2"),
        (True, "float16", "float16"),
        (True, "auto", "bfloat16"),
    ],
)
def test_the_cache_has_the_type_that_is_asked_for(has_fp8, asked, dtype, tiny_path):
    accelerator = HostAccelerator()
    accelerator.has_fp8 = has_fp8
    device = CudaDevice(WorkerSettings(device="cuda", kv_cache_dtype=asked), lambda: accelerator)
    device.set_up()

    assert device.load_model(LoadRequest("tiny", tiny_path), nothing).kv_groups(16)[0].dtype == dtype


def test_a_type_that_only_the_cpu_device_has_is_refused():
    with pytest.raises(
        ModelError, match="kv_cache_dtype int8 is the cpu device's; use auto, bfloat16, float16, float32 or fp8"
    ):
        CudaDevice(WorkerSettings(device="cuda", kv_cache_dtype="int8"), HostAccelerator)


def test_the_cpu_device_refuses_types_that_only_a_gpu_has():
    with pytest.raises(ModelError, match="kv_cache_dtype fp8 is the cuda device's; use auto, float32, float16 or int8"):
        open_device(WorkerSettings(device="cpu", kv_cache_dtype="fp8"))


def test_heads_that_no_kernel_has_run_through_torch(tmp_path, load, load_cuda):
    save_tiny(tmp_path, tiny_config("LlamaForCausalLM", head_dim=320, num_attention_heads=1, num_key_value_heads=1))
    models = [device(tmp_path) for device in (load, load_cuda)]

    wanted, found = (Driver(model.make_runner(SMALL), SMALL) for model in models)
    for driver in (wanted, found):
        driver.add(0, range(3, 22))

    assert isinstance(models[1].decoder, TorchDecoder)
    assert found.generate(3) == wanted.generate(3)
