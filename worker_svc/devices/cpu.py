"""CPU device: activations in float32, weights packed once at load, in float32 or as a GGUF file has them.

Float32 because most CPUs multiply it fastest; where a bf16 unit exists, float32 is still what parity is promised for.
"""

import torch

from tetrad.services.errors import ModelError
from tetrad.services.log import get_logger
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.model_config import apply_overrides
from tetrad.worker_svc.checkpoint.open import open_weights
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvGroup, KvLayout, LoadedModel, LoadRequest, ModelInfo, Progress
from tetrad.worker_svc.core.host import available_memory_bytes, give_back_memory, usable_cores
from tetrad.worker_svc.core.layout_check import check_host_cache
from tetrad.worker_svc.devices.cpu_models import CpuModels
from tetrad.worker_svc.devices.kv_memory import kv_cache_bytes
from tetrad.worker_svc.model_facts.check import check_config
from tetrad.worker_svc.model_facts.quantization import CHECKPOINT_METHODS
from tetrad.worker_svc.models.registry import Model
from tetrad.worker_svc.runner.model_runner import ModelRunner

_FLOAT32_BYTES = 4
_GIB = 1 << 30
_DEFAULT_KV_CACHE_BYTES = 4 * _GIB

log = get_logger()


class CpuModel:
    """A LoadedModel in host memory."""

    def __init__(self, model: Model, info: ModelInfo) -> None:
        self._model = model
        self.info = info

    def kv_group(self, block_size: int) -> KvGroup:
        """Return the shape of the KV cache."""
        spec = self._model.kv_cache_spec
        return KvGroup(
            spec.num_layers,
            spec.block_size_bytes(block_size),
            spec.num_kv_heads,
            spec.head_dim,
            str(spec.dtype).removeprefix("torch."),
        )

    def make_runner(self, layout: KvLayout) -> ModelRunner:
        """Allocate the KV cache and return the runner; FailedPrecondition if there is no memory for it."""
        check_host_cache(layout, self._model.kv_cache_spec.block_size_bytes(layout.block_size))
        return ModelRunner(self._model, layout)

    def sleep(self) -> None:
        """Do nothing: host memory is where the weights are."""

    def wake_up(self) -> None:
        """Do nothing."""


class CpuDevice:
    """See Device."""

    name = "cpu"

    def __init__(self, settings: WorkerSettings) -> None:
        if settings.cpu_offload_gb:
            raise ModelError(f"cpu_offload_gb {settings.cpu_offload_gb:g} is the cuda device's; the cpu device takes 0.")
        self._num_threads = settings.threads or usable_cores()
        self._kv_cache_gib = settings.kv_cache_memory_gib
        self._models = CpuModels(settings, self._num_threads)

    def set_up(self) -> None:
        """Give the calling thread its team of OpenMP threads, for what torch does."""
        torch.set_num_threads(self._num_threads)
        log.info("device.ready", device=self.name, threads=self._num_threads, native=self._models.are_native)

    def load_model(self, request: LoadRequest, report: Progress) -> CpuModel:
        """Load and pack the weights."""
        _check_request(request)
        source = open_weights(request)
        config = check_config(apply_overrides(source.config, request.hf_overrides_json), self.name)
        weights = WeightLoader(source, report)
        with torch.inference_mode():
            model, weights_size_bytes = self._models.build(request, config, weights)
        weights.check_all_read(config.architecture)
        info = ModelInfo(
            model=request.model,
            architecture=config.architecture,
            vocab_size=config.vocab_size,
            max_position_embeddings=config.max_position_embeddings,
            dtype="float32",
            num_parameters=weights.num_parameters,
            weights_size_bytes=weights_size_bytes,
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            weights_dtype=source.stored_type,
        )
        del source, weights
        give_back_memory()
        return CpuModel(model, info)

    def available_memory(self, model: LoadedModel, *, utilization: float, max_num_batched_tokens: int) -> int:
        """Return the configured limit, or the smaller of the default one and the share of free memory that activations leave.

        FailedPrecondition, with the numbers, if the configured limit is more than that share.
        """
        # Per token: residual, fused gate and up, silu and qkv are alive at once; logits are made for few rows, and the sampler
        # keeps their log-probabilities and, of penalised rows, where each id was seen.
        activations = max_num_batched_tokens * 16 * model.info.hidden_size * _FLOAT32_BYTES
        logits = 4 * 256 * model.info.vocab_size * _FLOAT32_BYTES
        available = available_memory_bytes()
        return kv_cache_bytes(
            self._kv_cache_gib,
            int(available * utilization) - activations - logits,
            default_bytes=_DEFAULT_KV_CACHE_BYTES,
            why=f"gpu_memory_utilization {utilization:g} of {available / _GIB:.1f} GiB of free memory, less what a step takes",
        )

    def give_back_memory(self) -> None:
        """Return to the system what the allocator keeps."""
        give_back_memory()


def _check_request(request: LoadRequest) -> None:
    if request.dtype not in ("", "auto", "float32"):
        raise ModelError(f"dtype {request.dtype} is not supported on the cpu device; use auto or float32.")
    if request.quantization in CHECKPOINT_METHODS:
        raise ModelError(f"Quantization {request.quantization} needs the cuda device.")
    is_gguf = request.path.suffix == ".gguf"
    if request.quantization not in ("", "gguf" if is_gguf else "int8"):
        raise ModelError(
            f"Quantization {request.quantization!r} is not supported for {request.path.name}; "
            + ("a GGUF file runs as it is quantized (gguf)." if is_gguf else "supported: int8.")
        )
