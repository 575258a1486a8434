"""CUDA device: one NVIDIA GPU, with activations in bfloat16 by default; steps are queued without waiting for the GPU.

Unsupported cases are refused before anything is loaded: no GPU, a GPU that is too old, a model that does not fit.
"""

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tetrad.services.errors import FailedPrecondition, ModelError
from tetrad.services.log import get_logger
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.model_config import apply_overrides, read_model_config
from tetrad.worker_svc.checkpoint.open import open_source, open_weights
from tetrad.worker_svc.checkpoint.own_output import with_own_output
from tetrad.worker_svc.checkpoint.placed import PlacedWeights
from tetrad.worker_svc.checkpoint.pooling_use import find_use
from tetrad.worker_svc.checkpoint.sharded import ShardedSource
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import (
    LoadedModel,
    LoadRequest,
    ModelInfo,
    Progress,
    refuse_drafter,
    refuse_loras,
    with_media,
)
from tetrad.worker_svc.core.lora import LoraLimits
from tetrad.worker_svc.core.ranks import GroupPlace, Orders
from tetrad.worker_svc.cuda.device.accelerator import Accelerator, CudaAccelerator
from tetrad.worker_svc.cuda.device.gpu_check import check_gpu
from tetrad.worker_svc.cuda.device.weight_offload import WeightOffload
from tetrad.worker_svc.cuda.experts import mix_of
from tetrad.worker_svc.cuda.interface import DeviceModel
from tetrad.worker_svc.cuda.linears import DeviceLinears
from tetrad.worker_svc.cuda.loras import AdaptedLinears, DeviceLoras
from tetrad.worker_svc.cuda.media.device_media import DeviceMedia
from tetrad.worker_svc.cuda.ranks.links import DeviceChannels
from tetrad.worker_svc.cuda.transformers_model import DeviceTransformersModel
from tetrad.worker_svc.devices.cuda_drafted import CudaDraftedModel
from tetrad.worker_svc.devices.cuda_drafters import CudaDrafterLoader
from tetrad.worker_svc.devices.cuda_encoder import CudaEncoder, device_encoder
from tetrad.worker_svc.devices.cuda_media import load_media, load_media_of_rank
from tetrad.worker_svc.devices.cuda_model import CudaModel, whole_model
from tetrad.worker_svc.devices.cuda_programs import beyond_kernels, build_part, build_whole, part_config
from tetrad.worker_svc.devices.cuda_ranks import (
    CudaRankModel,
    check_part,
    join_ranks,
    orders_of,
    part_loras,
    runner_parts,
    stage_source,
)
from tetrad.worker_svc.devices.decoder_pooling import decoder_pooling, pooler_config_of
from tetrad.worker_svc.devices.encoder_model import check_options, load_encoder
from tetrad.worker_svc.devices.foreign_model import load_foreign_module
from tetrad.worker_svc.devices.kv_memory import kv_cache_bytes
from tetrad.worker_svc.devices.lora_parts import whole_reader
from tetrad.worker_svc.families.check import check_config, check_ranks
from tetrad.worker_svc.families.encoders import check_encoder, is_encoder
from tetrad.worker_svc.families.foreign import foreign_model
from tetrad.worker_svc.families.pooling import is_bidirectional
from tetrad.worker_svc.families.registry import find_family
from tetrad.worker_svc.families.values import architecture_of
from tetrad.worker_svc.layers.lora import LoraReader
from tetrad.worker_svc.media.memory import media_bytes
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.bidirectional import BidirectionalDecoder
from tetrad.worker_svc.models.draft_head import NoTaps, Tapped

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_DEFAULT_DTYPE = "bfloat16"
_GIB = 1 << 30

log = get_logger()


class CudaDevice:
    """The Device of one GPU; see Device.

    Args:
        settings: the worker's settings.
        open_accelerator: opens the GPU; tests pass a function that opens an accelerator in host memory.
    """

    name = "cuda"
    verifies_drafts = True
    takes_embeddings = True
    keeps_states = True
    keeps_runners = False
    shares_experts = False

    def __init__(self, settings: WorkerSettings, open_accelerator: Callable[[], Accelerator] | None = None) -> None:
        if settings.kv_cache_dtype == "int8":
            raise ModelError("kv_cache_dtype int8 is the cpu device's; use auto, bfloat16, float16, float32 or fp8.")
        self._use_graphs, self._kv_cache_dtype = not settings.enforce_eager, settings.kv_cache_dtype
        self._trusts_code = settings.trust_remote_code
        self._kv_cache_gib = settings.kv_cache_memory_gib
        self._offload_bytes = int(settings.cpu_offload_gb * _GIB)
        self._open = open_accelerator or CudaAccelerator
        if open_accelerator is None:
            check_gpu()
        self._accelerator: Accelerator | None = None
        self._ranks: DeviceChannels | None = None

    def set_up(self) -> None:
        """Open the GPU for the calling thread."""
        self._accelerator = self._open()
        free, total = self._accelerator.memory()
        log.info("device.ready", device=self.name, free_gib=round(free / _GIB, 1), total_gib=round(total / _GIB, 1))

    def join_group(self, place: GroupPlace) -> Orders | None:
        """See GroupDevice."""
        self._ranks = join_ranks(place, self._ready(), self._ranks)
        return orders_of(self._ranks)

    def leave_group(self) -> None:
        """See GroupDevice."""
        if self._ranks is not None:
            self._ranks.disconnect()

    def load_model(self, request: LoadRequest, report: Progress) -> CudaModel | CudaEncoder | CudaDraftedModel | CudaRankModel:
        """Load the weights to the device."""
        # cpu_offload_gb applies to the target model alone: a draft model runs for each draft.
        smaller = partial(self._load_alone, offload_bytes=0)
        if self._ranks is not None:
            if self._ranks.stage.size > 1:
                refuse_drafter(request, f"the cuda device with {self._ranks.option}")
            load_part = partial(self._load_part, ranks=self._ranks)
            loader = CudaDrafterLoader(load_part, smaller, load_part, self._ready(), self._ranks.sums)
            part = loader.load(request, report) if request.draft_method else load_part(request, report)
            return CudaRankModel(part, self._ranks)
        if request.draft_method:
            alone = partial(self._load_alone, offload_bytes=self._offload_bytes)
            decoder = partial(self._load_decoder, offload_bytes=self._offload_bytes)
            return CudaDrafterLoader(alone, smaller, decoder, self._ready()).load(request, report)
        return self._load_alone(request, report, self._offload_bytes)

    def _load_alone(self, request: LoadRequest, report: Progress, offload_bytes: int) -> CudaModel | CudaEncoder:
        if request.path.is_dir():
            facts = apply_overrides(read_model_config(request.path), request.hf_overrides_json)
            if is_encoder(facts):
                return self._load_encoder(request, facts, report, offload_bytes)
            if find_family(architecture_of(facts)) is None:
                return self._load_foreign(request, facts, report, offload_bytes)
        return self._load_decoder(request, report, offload_bytes)

    def _load_decoder(
        self, request: LoadRequest, report: Progress, offload_bytes: int, layers: Tapped | None = None
    ) -> CudaModel | CudaEncoder:
        """Load a decoder of a described family; `layers` chooses the layers whose hidden states a draft head reads."""
        accelerator, dtype = self._ready(), _dtype(request)
        source = open_weights(request, accelerator.device)
        overridden = apply_overrides(source.config, request.hf_overrides_json)
        config = check_config(overridden, self.name)
        weights = WeightLoader(source, report)
        longest, pooling, is_causal = config.max_position_embeddings, None, not is_bidirectional(overridden)
        use = find_use(request, overridden)
        if use is None or use.generates:
            config = with_own_output(config, source)
        if not is_causal:
            refuse_loras(request, "bidirectional decoders")
            _refuse_offload("a bidirectional decoder", offload_bytes)
        offload = WeightOffload(accelerator, offload_bytes, config.num_layers)
        with torch.inference_mode(), whole_model(request.model, accelerator, source.total_bytes):
            if use is not None:
                if not use.generates:
                    config = replace(config, tie_word_embeddings=True)  # the output layer is not read
                pools = pooler_config_of(request, overridden, use)
                longest = min(longest, pools.max_tokens or longest)
                placed = PlacedWeights(weights, accelerator.device)
                pooling = decoder_pooling(request, overridden, config, use, pools, placed, is_causal=is_causal)
            quantization = overridden.get("quantization_config")
            linears = DeviceLinears(quantization, request.quantization, weights, accelerator.device, dtype)
            loras = _loras_of(request, partial(whole_reader, config), accelerator, dtype)
            parameters = linears if loras is None else AdaptedLinears(linears, loras)
            model: DeviceModel | BidirectionalDecoder
            if is_causal:
                if beyond := beyond_kernels(config):
                    _refuse_offload(f"a model with {beyond}", offload_bytes)
                taps = layers(config) if layers else NoTaps()
                model = build_whole(config, parameters, self._cache_dtype(dtype), offload, accelerator.device, taps)
            else:
                model = BidirectionalDecoder(config, parameters, accelerator.device, accelerator.upload, mix_of)
            if loras is not None:
                loras.allocate()
            weights.check_complete(config)
            media = load_media(request, config, dtype, accelerator) if is_causal else None
        info = _info(request, config, weights, linears, source.stored_type, media)
        info = replace(info, max_position_embeddings=longest, pooling=None if pooling is None else pooling.facts)
        del source, weights
        gc.collect()
        if isinstance(model, BidirectionalDecoder):
            assert pooling is not None, "a model that does not pool is causal"
            return CudaEncoder(model, pooling, info, accelerator)
        if offload.freed_bytes:
            log.info("weights.offloaded", freed_gib=round(offload.freed_bytes / _GIB, 2))
        return CudaModel(
            model,
            info,
            accelerator,
            offload,
            use_graphs=self._use_graphs,
            loras=loras,
            pooling=pooling,
            media=media,
            sampling=request.sampler,
        )

    def _load_part(
        self, request: LoadRequest, report: Progress, ranks: DeviceChannels, layers: Tapped | None = None
    ) -> CudaModel:
        """Load this rank's part of a decoder of a described family; `layers`: see _load_decoder."""
        accelerator, dtype = self._ready(), _dtype(request)
        _refuse_offload("a model on several ranks", self._offload_bytes)
        if request.path.is_dir():
            facts = apply_overrides(read_model_config(request.path), request.hf_overrides_json)
            check_ranks(facts, ranks.shard.size, ranks.stage.size, expert_parallel=request.expert_parallel)
        source = open_weights(request, accelerator.device)
        overridden = apply_overrides(source.config, request.hf_overrides_json)
        config = check_config(overridden, self.name)
        check_part(request, overridden, config, ranks)
        config = with_own_output(config, source)
        experts = ranks.shard if request.expert_parallel else None
        own = ShardedSource(source, config, ranks.shard, experts=experts)
        weights = WeightLoader(stage_source(own, config, ranks), report)
        no_offload = WeightOffload(accelerator, 0, config.num_layers)
        with torch.inference_mode(), whole_model(request.model, accelerator, weights.total_bytes):
            quantization = overridden.get("quantization_config")
            linears = DeviceLinears(quantization, request.quantization, weights, accelerator.device, dtype)
            loras = _loras_of(request, part_loras(config, source, ranks), accelerator, dtype)
            parameters = linears if loras is None else AdaptedLinears(linears, loras)
            cache_dtype, taps = self._cache_dtype(dtype), layers(config) if layers else NoTaps()
            model = build_part(config, parameters, cache_dtype, no_offload, accelerator.device, ranks, taps, experts=experts)
            if loras is not None:
                loras.allocate()
            part = part_config(config, ranks)
            weights.check_complete(part)
            media = load_media_of_rank(request, part, dtype, accelerator, is_leader=ranks.is_leader)
        info = _info(request, config, weights, linears, source.stored_type, media)
        del source, weights
        gc.collect()
        return CudaModel(
            model,
            info,
            accelerator,
            no_offload,
            use_graphs=self._use_graphs,
            loras=loras,
            media=media,
            sampling=request.sampler,
            parts=runner_parts(ranks),
        )

    def _load_encoder(
        self, request: LoadRequest, config: Mapping[str, Any], report: Progress, offload_bytes: int
    ) -> CudaEncoder:
        accelerator, dtype = self._ready(), _dtype(request)
        check_encoder(config, self.name)
        check_options(request)
        _refuse_offload("an encoder", offload_bytes)
        source = open_source(request.path)
        weights, build = WeightLoader(source, report), device_encoder(accelerator)
        with torch.inference_mode(), whole_model(request.model, accelerator, source.total_bytes):
            parts = load_encoder(
                request, config, weights, build, stored_type=source.stored_type, device=accelerator.device, dtype=dtype
            )
        return CudaEncoder(*parts, accelerator)

    def _load_foreign(self, request: LoadRequest, config: Mapping[str, Any], report: Progress, offload_bytes: int) -> CudaModel:
        """Load a model of no described family, with transformers' code."""
        accelerator, dtype = self._ready(), _dtype(request)
        foreign = foreign_model(config, trusts_code=self._trusts_code)
        _refuse_offload("a model that transformers' code runs", offload_bytes)
        if name := request.quantization:
            raise ModelError(f"Quantization {name[:80]!r} is not supported for a model that transformers' code runs.")
        module = load_foreign_module(request, foreign, config, report, dtype, accelerator.device)
        with torch.inference_mode(), whole_model(request.model, accelerator, module.info.weights_size_bytes):
            model = DeviceTransformersModel(module.loaded, module.layers, dtype, self._cache_dtype(dtype), accelerator.device)
        no_offload = WeightOffload(accelerator, 0, module.info.num_layers)
        return CudaModel(
            model,
            module.info,
            accelerator,
            no_offload,
            use_graphs=False,
            pooling=module.pooling,
            sampling=request.sampler,
        )

    def available_memory(
        self,
        model: LoadedModel,
        *,
        utilization: float,
        max_num_batched_tokens: int,
        max_num_encoder_tokens: int = 0,
    ) -> int:
        """Return the bytes for KV blocks: kv_cache_memory_gib if it is set, otherwise all that is free.

        Free are `utilization` of the device's memory, minus weights, the largest step, graphs and other processes. Raises
        FailedPrecondition, with the numbers, if the step does not fit, if nothing is free, or less than kv_cache_memory_gib.
        """
        assert isinstance(model, CudaModel | CudaEncoder | CudaDraftedModel | CudaRankModel)
        accelerator = self._ready()
        try:
            step_bytes = model.worst_case_bytes(max_num_batched_tokens)
            step_bytes += media_bytes(model, max_num_batched_tokens, max_num_encoder_tokens)
        except torch.OutOfMemoryError as error:
            free, total = accelerator.memory()
            raise FailedPrecondition(
                f"The largest step (max_num_batched_tokens {max_num_batched_tokens}) does not fit the device: weights take "
                f"{model.weights_on_device_bytes} bytes, and {free} of {total} are free; lower max_num_batched_tokens."
            ) from error
        free, total = accelerator.memory()
        available = int(total * utilization) - (total - free) - step_bytes
        if available <= 0:
            raise FailedPrecondition(
                f"gpu_memory_utilization {utilization} of the device's {total} bytes leaves nothing for the KV cache: weights "
                f"take {model.weights_on_device_bytes}, the largest step (max_num_batched_tokens {max_num_batched_tokens}) "
                f"and the graphs {step_bytes}, and {free} are free."
            )
        why = f"gpu_memory_utilization {utilization:g} of {total / _GIB:.1f} GiB, less weights and what a step takes"
        return kv_cache_bytes(self._kv_cache_gib, available, default_bytes=available, why=why)

    def give_back_memory(self) -> None:
        """Return torch's unused device memory to the device."""
        self._ready().give_back_memory()

    def check(self) -> None:
        """Wait for the GPU; raises the GPU's error if a kernel has failed, since every later call then fails too."""
        self._ready().check()

    def _cache_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type of keys and values for activations of type `dtype`."""
        if self._kv_cache_dtype == "fp8":
            # Triton supports e4m3, the more exact of the two types, from Ada on.
            return torch.float8_e4m3fn if self._ready().has_fp8 else torch.float8_e5m2
        return _DTYPES.get(self._kv_cache_dtype, dtype)

    def _ready(self) -> Accelerator:
        assert self._accelerator is not None, "set_up comes first"
        return self._accelerator


def _loras_of(
    request: LoadRequest, reader: Callable[[LoraLimits], LoraReader], accelerator: Accelerator, dtype: torch.dtype
) -> DeviceLoras | None:
    return None if request.loras is None else DeviceLoras(reader(request.loras), request.loras, accelerator, dtype)


def _info(
    request: LoadRequest,
    config: ModelConfig,
    weights: WeightLoader,
    linears: DeviceLinears,
    stored: str,
    media: DeviceMedia | None = None,
) -> ModelInfo:
    info = ModelInfo(
        model=request.model,
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        dtype=str(_dtype(request)).removeprefix("torch."),
        num_parameters=weights.num_parameters,
        weights_size_bytes=linears.weights_size_bytes,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        weights_dtype=stored,
    )
    return with_media(info, None if media is None else media.media)


def _refuse_offload(model: str, size_bytes: int) -> None:
    if size_bytes:
        raise ModelError(f"cpu_offload_gb is not supported for {model}; it takes 0.")


def _dtype(request: LoadRequest) -> torch.dtype:
    name = _DEFAULT_DTYPE if request.dtype in ("", "auto") else request.dtype
    if name not in _DTYPES:
        raise ModelError(f"dtype {name[:80]} is not supported on the cuda device; use auto, {', '.join(_DTYPES)}.")
    return _DTYPES[name]
