"""CPU device: computes activations in float32; weights keep the types of their files and are packed once, at load.

With `dtype=bfloat16`, on processors that multiply it, weights and the inputs of their products are rounded to bfloat16.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from tetrad.services.errors import ModelError
from tetrad.services.log import get_logger
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.model_config import apply_overrides, read_model_config
from tetrad.worker_svc.checkpoint.open import open_source, open_weights
from tetrad.worker_svc.checkpoint.own_output import with_own_output
from tetrad.worker_svc.checkpoint.pooling_use import find_use
from tetrad.worker_svc.checkpoint.sharded import ShardedSource
from tetrad.worker_svc.checkpoint.source import WeightSource
from tetrad.worker_svc.checkpoint.staged import StagedSource
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import (
    LoadedModel,
    LoadRequest,
    ModelInfo,
    Progress,
    refuse_loras,
    with_media,
)
from tetrad.worker_svc.core.host import available_memory_bytes, give_back_memory, usable_cores
from tetrad.worker_svc.core.media import ModelMedia
from tetrad.worker_svc.core.ranks import GroupPlace, Orders, Shard, Stage
from tetrad.worker_svc.devices.cpu_model import CpuModel
from tetrad.worker_svc.devices.cpu_models import CpuModels
from tetrad.worker_svc.devices.decoder_pooling import decoder_pooling, pooler_config_of
from tetrad.worker_svc.devices.drafters import DrafterLoader, tapped_for
from tetrad.worker_svc.devices.encoder_model import EncoderModel, check_options, host_encoder, load_encoder
from tetrad.worker_svc.devices.foreign_model import load_foreign
from tetrad.worker_svc.devices.host_numbers import BFLOAT16, check_dtype, refuse_bfloat16
from tetrad.worker_svc.devices.kv_memory import kv_cache_bytes
from tetrad.worker_svc.devices.lora_parts import LoraPartReader
from tetrad.worker_svc.families.check import check_config, check_ranks
from tetrad.worker_svc.families.encoders import check_encoder, is_encoder
from tetrad.worker_svc.families.foreign import foreign_model
from tetrad.worker_svc.families.pooling import PoolingUse, is_bidirectional
from tetrad.worker_svc.families.registry import find_family
from tetrad.worker_svc.families.values import architecture_of
from tetrad.worker_svc.layers.collectives import Collectives, gloo_sums
from tetrad.worker_svc.layers.order_channel import gloo_orders
from tetrad.worker_svc.layers.shared_experts import ExpertExchange, SharedMixes
from tetrad.worker_svc.media.encoder_cache import EncoderCache
from tetrad.worker_svc.media.memory import media_bytes
from tetrad.worker_svc.media.tower_loading import load_tower
from tetrad.worker_svc.media.whisper_loading import has_encoder, load_whisper
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.quantization import method_of
from tetrad.worker_svc.model_facts.sharding import check_size, shard_config
from tetrad.worker_svc.model_facts.stages import check_stages, stage_config, stage_layers
from tetrad.worker_svc.models.draft_head import Tapped
from tetrad.worker_svc.native.shared_orders import OrdersOfMachine
from tetrad.worker_svc.native.shared_sums import SumsOfMachine
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.runner.orders import decode_model_order
from tetrad.worker_svc.runner.rank_channels import LeaderOrders, RankChannels

_ALL = Shard(0, 1)
_WEIGHTS = (".safetensors", ".bin", ".gguf")
_FLOAT32_BYTES = 4
_GIB = 1 << 30
_DEFAULT_KV_CACHE_BYTES = 4 * _GIB

log = get_logger()


class CpuDevice:
    """The Device of the host's processor; see Device."""

    name = "cpu"
    verifies_drafts = True
    takes_embeddings = True
    keeps_states = True
    keeps_runners = True

    def __init__(self, settings: WorkerSettings) -> None:
        if settings.cpu_offload_gb:
            raise ModelError(f"cpu_offload_gb {settings.cpu_offload_gb:g} is the cuda device's; the cpu device takes 0.")
        self._num_threads = settings.threads or usable_cores()
        self._trusts_code = settings.trust_remote_code
        self._kv_cache_gib = settings.kv_cache_memory_gib
        self._models = CpuModels(settings, self._num_threads)
        self._ranks: RankChannels | None = None
        self._exchange = _open_exchange(settings, self._num_threads)
        self.shares_experts = self._exchange is not None

    def set_up(self) -> None:
        """Set the number of OpenMP threads that torch uses on the calling thread."""
        torch.set_num_threads(self._num_threads)
        log.info("device.ready", device=self.name, threads=self._num_threads, native=self._models.are_native)

    def join_group(self, place: GroupPlace) -> Orders | None:
        """See GroupDevice."""
        if self._ranks is not None and (self._ranks.shard, self._ranks.stage) != (place.shard, place.stage):
            self._ranks.disconnect()
            self._ranks = None
        if place.size == 1:
            return None
        if self._ranks is None:
            team = self._models.team
            open_sums = gloo_sums if team is None else SumsOfMachine(team.library)
            open_orders = gloo_orders if team is None else OrdersOfMachine(team.library)
            self._ranks = RankChannels(place.shard, place.stage, Collectives(place.shard, open_sums), open_orders)
        self._ranks.connect(place)
        log.info("group.joined", rank=place.rank, size=place.size, epoch=place.epoch)
        return None if self._ranks.is_leader else LeaderOrders(self._ranks, decode_model_order)

    def leave_group(self) -> None:
        """See GroupDevice."""
        if self._ranks is not None:
            self._ranks.disconnect()
        if self._exchange is not None:
            self._exchange.leave()

    def load_model(self, request: LoadRequest, report: Progress) -> LoadedModel:
        """Load and pack the weights."""
        check_dtype(request, self._models.team)
        ranks = self._ranks
        if ranks is None and self._exchange is not None and request.expert_parallel:
            load = partial(self._load_sharing, self._exchange)
            if request.draft_method:
                return DrafterLoader(load, load, self._load_whole).load(request, report)
            return load(request, report)
        if ranks is None:
            if request.draft_method:
                return DrafterLoader(self._load_whole, self._load_decoder, self._load_whole).load(request, report)
            return self._load_whole(request, report)
        load_part = partial(self._load_part, ranks)
        if request.draft_method and ranks.is_leader:
            return DrafterLoader(load_part, load_part, self._load_whole, is_shard=ranks.shard.size > 1).load(request, report)
        return load_part(request, report, tapped_for(request) if ranks.stage.size > 1 else None)

    def _load_whole(self, request: LoadRequest, report: Progress) -> LoadedModel:
        """Load a whole model of any kind."""
        if request.path.is_dir():
            facts = _config_of(request)
            if is_encoder(facts):
                return _load_encoder(request, facts, report, self._models.team)
            if find_family(architecture_of(facts)) is None:
                return self._load_foreign(request, facts, report)
        return self._load_decoder(request, report)

    def _load_decoder(self, request: LoadRequest, report: Progress, layers: Tapped | None = None) -> LoadedModel:
        """Load a decoder of a described family; `layers` chooses the layers whose hidden states a draft head reads."""
        source = open_weights(request)
        overridden, config = self._read_config(request, source)
        use, pooling, is_causal = find_use(request, overridden), None, not is_bidirectional(overridden)
        if config.encoder_length:
            _check_encoder_decoder(request, config, use)
        if use is None or use.generates:
            config = with_own_output(config, source)
        weights = WeightLoader(source, report)
        longest = config.max_position_embeddings
        make: Callable[[ModelInfo], LoadedModel]
        media = self._load_media(request)
        with torch.inference_mode():
            if use is not None:
                if not use.generates:
                    config = replace(config, tie_word_embeddings=True)  # the output layer is not read
                pools = pooler_config_of(request, overridden, use)
                longest = min(longest, pools.max_tokens or longest)
                pooling = decoder_pooling(request, overridden, config, use, pools, weights, is_causal=is_causal)
            if pooling is None or is_causal:
                model = self._models.build(request, config, weights, pooling, layers(config) if layers else None)
                size_bytes, make = model.weights_size_bytes, partial(CpuModel, model, media=media)
            else:
                make = partial(EncoderModel, self._models.build_bidirectional(request, config, weights), pooling)
                size_bytes = weights.num_parameters * _FLOAT32_BYTES
        weights.check_complete(config)
        info = with_media(_info(request, config, weights, size_bytes, source.stored_type), media)
        del source, weights
        give_back_memory()
        return make(replace(info, max_position_embeddings=longest, pooling=None if pooling is None else pooling.facts))

    def _load_media(self, request: LoadRequest) -> ModelMedia | None:
        """Load the tower of a model that takes images."""
        if request.path.is_dir() and has_encoder(_config_of(request)):
            return ModelMedia(load_whisper(request), EncoderCache())
        tower = load_tower(request, torch.float32, torch.device("cpu"), has_own_thread=True, sees_ahead=True)
        return None if tower is None else ModelMedia(tower, EncoderCache())

    def _load_part(
        self, ranks: RankChannels, request: LoadRequest, report: Progress, layers: Tapped | None = None
    ) -> LoadedModel:
        """Load this rank's part of a model; `layers` chooses the layers whose hidden states a draft head reads."""
        exchange = self._exchange if request.expert_parallel else None
        num_engines = exchange.size if exchange else 1
        if request.path.is_dir():
            sizes = ranks.shard.size, ranks.stage.size
            check_ranks(_config_of(request), *sizes, expert_parallel=request.expert_parallel, num_engines=num_engines)
        source = open_weights(request)
        overridden, config = self._read_config(request, source)
        check_size(config, ranks.shard.size, expert_parallel=request.expert_parallel, num_engines=num_engines)
        check_stages(config, ranks.stage.size)
        if find_use(request, overridden) is not None:
            raise ModelError(f"{ranks.option}: a model that pools runs on one worker; use 1.")
        config = with_own_output(config, source)
        own_layers = stage_layers(config, ranks.stage)
        experts, shared = ranks.shard if request.expert_parallel else None, None
        if exchange is not None:
            experts = exchange.part(ranks.shard)
            shared = SharedMixes(exchange, ranks.shard, _facts_of(request, overridden, ranks.stage), config.hidden_size)
        own: WeightSource = source
        if ranks.shard.size > 1 or shared is not None:
            own = ShardedSource(source, config, ranks.shard, experts=experts)
        weights = WeightLoader(StagedSource(own, own_layers, config.num_layers), report)
        with torch.inference_mode():
            reader, taps = _part_reader(request, config, source, ranks), layers(config) if layers else None
            model = self._models.build_part(request, config, weights, ranks, reader, taps, experts=experts, shared=shared)
        weights.check_complete(stage_config(config, ranks.stage))
        log.info("stage.loaded", stage=ranks.stage.index, layers=f"{own_layers.start}-{own_layers.stop - 1}")
        media = self._load_media(request) if ranks.is_leader else None
        info = with_media(_info(request, config, weights, model.weights_size_bytes, source.stored_type), media)
        del source, weights
        give_back_memory()
        if shared is not None:
            shared.serve()
        return CpuModel(model, info, media)

    def _load_sharing(
        self, exchange: ExpertExchange, request: LoadRequest, report: Progress, layers: Tapped | None = None
    ) -> LoadedModel:
        """Load a model with this worker's experts, which several engines share; for `layers` see _load_decoder."""
        if request.path.is_dir():
            check_ranks(_config_of(request), 1, expert_parallel=True, num_engines=exchange.size)
        source = open_weights(request)
        overridden, config = self._read_config(request, source)
        check_size(config, 1, expert_parallel=True, num_engines=exchange.size)
        if find_use(request, overridden) is not None:
            raise ModelError(
                f"enable_expert_parallel with data_parallel_size {exchange.size}: a model that pools has all experts on each "
                "worker; start without enable_expert_parallel."
            )
        config = with_own_output(config, source)
        experts, shared = exchange.part(_ALL), SharedMixes(exchange, _ALL, _facts_of(request, overridden), config.hidden_size)
        weights, media = WeightLoader(ShardedSource(source, config, _ALL, experts=experts), report), self._load_media(request)
        with torch.inference_mode():
            reader = None if request.loras is None else LoraPartReader(config, request.loras, source.has, _ALL, Stage())
            part, taps = shard_config(config, _ALL, experts=experts), layers(config) if layers else None
            model = self._models.build_sharing(request, part, weights, shared, reader, taps)
        weights.check_complete(config)
        info = with_media(_info(request, config, weights, model.weights_size_bytes, source.stored_type), media)
        del source, weights
        give_back_memory()
        shared.serve()
        log.info("experts.shared", part=experts.index, parts=experts.size)
        return CpuModel(model, info, media)

    def _read_config(self, request: LoadRequest, source: WeightSource) -> tuple[Mapping[str, Any], ModelConfig]:
        overridden = apply_overrides(source.config, request.hf_overrides_json)
        _check_quantization(request, overridden)
        return overridden, check_config(overridden, self.name)

    def _load_foreign(self, request: LoadRequest, config: Mapping[str, Any], report: Progress) -> LoadedModel:
        """Load a model of no described family, with transformers' code."""
        _check_quantization(request, config)
        foreign = foreign_model(config, trusts_code=self._trusts_code)
        refuse_bfloat16(request, "a model of transformers' code")
        self._models.check_torch(request, "A model of transformers")
        return CpuModel(*load_foreign(request, foreign, config, report))

    def available_memory(
        self, model: LoadedModel, *, utilization: float, max_num_batched_tokens: int, max_num_encoder_tokens: int = 0
    ) -> int:
        """Return the configured KV cache size, or by default the smaller of the default size and the free share of memory.

        The free share is `utilization` of the available memory, minus the activations of a step and the memory of images.
        Raises FailedPrecondition, with the numbers, if the configured size exceeds it.
        """
        # Per token, the residual, the fused gate and up, silu and qkv exist at the same time. Logits are computed for few rows;
        # the sampler keeps their log-probabilities and, for rows with penalties, the positions of seen token ids.
        activations = max_num_batched_tokens * 16 * model.info.hidden_size * _FLOAT32_BYTES
        logits = 4 * 256 * model.info.vocab_size * _FLOAT32_BYTES
        media = media_bytes(model, max_num_batched_tokens, max_num_encoder_tokens)
        available = available_memory_bytes()
        return kv_cache_bytes(
            self._kv_cache_gib,
            int(available * utilization) - activations - logits - media,
            default_bytes=_DEFAULT_KV_CACHE_BYTES,
            why=f"gpu_memory_utilization {utilization:g} of {available / _GIB:.1f} GiB of free memory, less what a step takes"
            + (f" and what images take, {media / _GIB:.1f} GiB" if media else ""),
        )

    def give_back_memory(self) -> None:
        """Return the allocator's unused memory to the system."""
        give_back_memory()

    def check(self) -> None:
        """Do nothing: a failed step does not affect later steps on a processor."""


def _open_exchange(settings: WorkerSettings, num_threads: int) -> ExpertExchange | None:
    """Return the connections to the workers with which this one shares experts; None: there are none."""
    if len(settings.expert_targets) <= 1:
        return None
    paths = tuple(target.removeprefix("unix:") for target in settings.expert_targets)
    return ExpertExchange(paths, settings.expert_index, num_threads)


def _facts_of(request: LoadRequest, config: Mapping[str, Any], stage: Stage = Stage()) -> str:  # noqa: B008 - it is frozen
    """Return a text that is equal for workers that load parts of the same weights: of one machine's files, unchanged since."""
    path, chosen = request.path, [request.dtype, request.quantization, request.random_weights, request.seed]
    kept = [each for each in sorted(path.iterdir()) if each.suffix in _WEIGHTS] if path.is_dir() else [path]
    files = [(str(each), each.stat().st_size, each.stat().st_mtime_ns) for each in kept]
    return json.dumps([stage.index, stage.size, *chosen, files, config], sort_keys=True, default=str)


def _info(request: LoadRequest, config: ModelConfig, weights: WeightLoader, size_bytes: int, stored_type: str) -> ModelInfo:
    return ModelInfo(
        model=request.model,
        architecture=config.architecture,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        dtype=request.dtype if request.dtype == BFLOAT16 else "float32",
        num_parameters=weights.num_parameters,
        weights_size_bytes=size_bytes,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        weights_dtype=stored_type,
    )


def _part_reader(request: LoadRequest, config: ModelConfig, source: WeightSource, ranks: RankChannels) -> LoraPartReader | None:
    if request.loras is None:
        return None
    return LoraPartReader(config, request.loras, source.has, ranks.shard, ranks.stage)


def _check_encoder_decoder(request: LoadRequest, config: ModelConfig, use: PoolingUse | None) -> None:
    """Raise ModelError for options that a model with an encoder and a decoder does not have."""
    refuse_loras(request, "models with an encoder and a decoder")
    if use is not None:
        raise ModelError(f"Architecture {config.architecture} has an encoder and a decoder: it generates and does not pool.")


def _config_of(request: LoadRequest) -> Mapping[str, Any]:
    return apply_overrides(read_model_config(request.path), request.hf_overrides_json)


def _load_encoder(request: LoadRequest, config: Mapping[str, Any], report: Progress, team: Team | None) -> LoadedModel:
    check_encoder(config, CpuDevice.name)
    check_options(request)
    refuse_bfloat16(request, "an encoder")
    source = open_source(request.path)
    weights, build = WeightLoader(source, report), host_encoder(request, team)
    with torch.inference_mode():
        return EncoderModel(*load_encoder(request, config, weights, build, stored_type=source.stored_type))


def _check_quantization(request: LoadRequest, config: Mapping[str, Any]) -> None:
    """Raise ModelError unless the requested quantization is that of the files, or int8 for weights that are floats."""
    own = "gguf" if request.path.suffix == ".gguf" else method_of(config.get("quantization_config"))
    if request.quantization not in ("", own or "int8"):
        raise ModelError(
            f"Quantization {request.quantization[:80]!r} is not supported for {request.path.name}; "
            + (f"it runs as it is quantized ({own})." if own else "supported: int8.")
        )
