"""CPU models: which implementation runs a model on the host, the native kernels or torch, and in which form its weights stay.

The native kernels run every model of the registry whose heads fill whole vectors. Torch runs the rest, and everything where
there are no kernels and no compiler; it is also what the kernels are tested against.
"""

import torch

from tetrad.services.errors import ModelError
from tetrad.services.log import get_logger
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.layers.linear import PackedLinear, PlainLinear, can_pack
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.registry import Model, load_model
from tetrad.worker_svc.native.library import NoLibraryError, best_target, load_library
from tetrad.worker_svc.native.llama import MAX_HEAD_DIM, MatrixLoader, NativeLlama
from tetrad.worker_svc.native.matrix_loaders import FloatMatrices, StoredMatrices
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.native.weights import pack_int8

_FLOAT32_BYTES = 4
_KV_DTYPES = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}

log = get_logger()


class CpuModels:
    """Builds models on one team of threads.

    Args:
        settings: which kernels, and the type of keys and values.
        num_threads: of the native kernels.
    """

    def __init__(self, settings: WorkerSettings, num_threads: int) -> None:
        if settings.kv_cache_dtype in ("bfloat16", "fp8"):
            raise ModelError(
                f"kv_cache_dtype {settings.kv_cache_dtype} is the cuda device's; use auto, float32, float16 or int8."
            )
        self._is_required = settings.cpu_kernels == "native"
        self._kv_cache_dtype = settings.kv_cache_dtype
        self._team = None if settings.cpu_kernels == "torch" else self._open_team(num_threads)

    @property
    def are_native(self) -> bool:
        """Whether there are native kernels."""
        return self._team is not None

    def build(self, request: LoadRequest, config: ModelConfig, weights: WeightLoader) -> tuple[Model, int]:
        """Return the model and the bytes of its weights in memory; ModelError if what is asked for cannot be had."""
        team = self._team if _fits(config, self._team) else None
        if team is not None:
            kv_cache_dtype = self._kv_dtype(request, weights)
            model = NativeLlama(config, weights, _matrices(request, weights, team), team, kv_cache_dtype=kv_cache_dtype)
            return model, model.weights_size_bytes
        if self._is_required:
            raise ModelError(f"Heads of {config.head_dim} do not fit the native kernels; run with cpu_kernels auto or torch.")
        if request.quantization:
            raise ModelError(
                f"Quantization {request.quantization!r} needs the native kernels, which do not run this model here."
            )
        if self._kv_cache_dtype in ("float16", "int8"):
            raise ModelError(
                f"kv_cache_dtype {self._kv_cache_dtype} needs the native kernels, which do not run this model here."
            )
        return load_model(config, weights, PackedLinear if can_pack() else PlainLinear), weights.num_parameters * _FLOAT32_BYTES

    def _kv_dtype(self, request: LoadRequest, weights: WeightLoader) -> torch.dtype:
        """Return the type of keys and values: the configured one, or for "auto" the smallest whose error nobody can see.

        Under quantized weights, int8 adds less error than the weights did, unless the keys of some dimensions are far larger
        than those of their neighbours, with which they share a scale. Biases and norms of keys make such dimensions: a bias of
        Qwen2.5-0.5B is 480 times the median one, and int8 changes its answers. Those models keep float16.
        """
        if self._kv_cache_dtype != "auto":
            return _KV_DTYPES[self._kv_cache_dtype]
        if not _is_quantized(request):
            return torch.float32
        return torch.float16 if _scales_keys_unevenly(weights) else torch.int8

    def _open_team(self, num_threads: int) -> Team | None:
        try:
            return Team(load_library(best_target()), num_threads)
        except NoLibraryError as error:
            if self._is_required:
                raise ModelError(f"The native kernels cannot be had: {error}.") from error
            log.warning("native.unavailable", reason=str(error), consequence="models run through torch, slower")
            return None


def _fits(config: ModelConfig, team: Team | None) -> bool:
    return team is not None and config.head_dim % team.library.tetrad_lanes() == 0 and config.head_dim <= MAX_HEAD_DIM


def _is_quantized(request: LoadRequest) -> bool:
    if request.quantization:
        return True
    return request.dtype != "float32" and request.path.suffix == ".gguf"


def _scales_keys_unevenly(weights: WeightLoader) -> bool:
    return any(weights.has(f"model.layers.0.self_attn.{name}") for name in ("k_proj.bias", "k_norm.weight"))


def _matrices(request: LoadRequest, weights: WeightLoader, team: Team) -> MatrixLoader:
    if request.quantization == "int8":
        return FloatMatrices(weights, team, pack_int8)
    return StoredMatrices(weights, team) if _is_quantized(request) else FloatMatrices(weights, team)
