"""CPU models: chooses the program that runs a model on the host, native or torch.

The native program runs models whose traits it supports and whose heads fill whole vectors. Torch runs all other models, and
every model if there are no native kernels and no compiler; the kernels are tested against torch.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from tetrad.services.errors import ModelError
from tetrad.services.log import get_logger
from tetrad.worker_svc.attention.interface import M
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest, refuse_loras
from tetrad.worker_svc.core.lora import ModelLoras
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.core.result import Runner
from tetrad.worker_svc.devices.host_numbers import choose_kv_dtype, choose_matrices, host_parameters, refuse_bfloat16
from tetrad.worker_svc.devices.lora_parts import whole_reader
from tetrad.worker_svc.devices.poolers import Pooling
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec
from tetrad.worker_svc.layers.experts import HostMixes
from tetrad.worker_svc.layers.lora import AdaptedParameters, LoraReader, LoraRows
from tetrad.worker_svc.layers.shared_experts import SharedMixes
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.sharding import check_blocks, shard_config
from tetrad.worker_svc.model_facts.stages import num_reading_stages, stage_config
from tetrad.worker_svc.model_facts.traits import Trait, traits_of
from tetrad.worker_svc.models.bidirectional import BidirectionalDecoder
from tetrad.worker_svc.models.draft_head import LayerTaps, NoTaps, StageTaps, Taps
from tetrad.worker_svc.models.host import HostDecoder, HostStage
from tetrad.worker_svc.models.interface import Model, StageModel
from tetrad.worker_svc.native.decoder import MAX_HEAD_DIM, TRAITS, NativeDecoder, NativeStage
from tetrad.worker_svc.native.formats import INT8
from tetrad.worker_svc.native.library import NoLibraryError, best_target, load_library
from tetrad.worker_svc.native.loras import NativeLoras, NoNativeLoras
from tetrad.worker_svc.native.program_sums import WHOLE, RankSums, Share
from tetrad.worker_svc.native.shard import NativeShard
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.runner.leader import LedLoras, leading_runner
from tetrad.worker_svc.runner.member import MemberRunner, ModelPart, StagePart
from tetrad.worker_svc.runner.model_runner import ModelRunner
from tetrad.worker_svc.runner.pooling_rows import DecoderPooling
from tetrad.worker_svc.runner.rank_channels import RankChannels

_FLOAT32_BYTES = 4
_SHARED = "A layer whose experts are on several workers"
_PROVIDES_STATES = "A model that provides hidden states of its layers"

log = get_logger()


class HostModel(NamedTuple):
    """A loaded model on the host, run by the native program or by torch."""

    kv_cache_spec: KvCacheSpec
    weights_size_bytes: int
    make_runner: Callable[..., Runner]  # of a layout, and of media if the model has a tower
    loras: ModelLoras | None = None
    expert_tokens: Sequence[Ints] = ()
    decoder: Model[Any] | None = None  # used by drafters; of several ranks, the leader's part. None: there can be no drafter
    shared: SharedMixes | None = None  # experts that the workers of several engines share; None: none are


class CpuModels:
    """Builds models that share one team of threads.

    Args:
        settings: choose the kernels, and the type of keys and values.
        num_threads: number of threads of the native kernels.
    """

    def __init__(self, settings: WorkerSettings, num_threads: int) -> None:
        if settings.kv_cache_dtype in ("bfloat16", "fp8"):
            raise ModelError(
                f"kv_cache_dtype {settings.kv_cache_dtype} is the cuda device's; use auto, float32, float16 or int8."
            )
        self._is_required = settings.cpu_kernels == "native"
        self._kv_cache_dtype = settings.kv_cache_dtype
        self.team = None if settings.cpu_kernels == "torch" else self._open_team(num_threads)

    @property
    def are_native(self) -> bool:
        """Whether native kernels are available and enabled."""
        return self.team is not None

    def build(
        self,
        request: LoadRequest,
        config: ModelConfig,
        weights: WeightLoader,
        pooling: Pooling | None = None,
        taps: Taps | None = None,
    ) -> HostModel:
        """Return the model; raise ModelError if it cannot run with the settings.

        Args:
            request: the model and its options.
            config: the model's description.
            weights: the model's tensors.
            pooling: pools the hidden states; None: the model only generates.
            taps: read hidden states between layers; None: no taps.
        """
        team, reason = self.team, _why_not_native(config, self.team)
        if taps is not None:
            reason = _PROVIDES_STATES
        if team is not None and not reason:
            kv_cache_dtype = choose_kv_dtype(self._kv_cache_dtype, request, weights)
            matrices = choose_matrices(request, weights, team)
            loras = _native_loras(whole_reader(config, request.loras) if request.loras else None, request, team)
            native = NativeDecoder(
                config, weights, matrices, team, kv_cache_dtype=kv_cache_dtype, loras=loras or NoNativeLoras()
            )
            make_runner = runner_of(request, native, pooling, loras)
            return HostModel(native.kv_cache_spec, native.weights_size_bytes, make_runner, loras, native.expert_tokens, native)
        self.check_torch(request, reason)
        if team is not None:
            log.info("model.runs_on_torch", architecture=config.architecture, reason=reason)
        plain = host_parameters(request, weights, team, keeps_experts=True)
        rows = LoraRows(whole_reader(config, request.loras)) if request.loras else None
        if rows is None:
            model = HostDecoder(config, plain, taps=taps or NoTaps())
        else:
            adapted = AdaptedParameters(plain, rows, adapts_experts=True)
            model = HostDecoder(config, adapted, taps=taps or NoTaps(), mixes=HostMixes(rows.among))
        size_bytes = weights.num_parameters * _FLOAT32_BYTES - plain.saved_bytes
        if weights.loaded_bytes < size_bytes and (weights.are_packed or request.path.suffix == ".gguf"):
            log.info("weights.dequantized", stored_bytes=weights.loaded_bytes, size_bytes=size_bytes, dtype="float32")
        make_runner = runner_of(request, model, pooling, rows, model.attention.settle_drafts)
        return HostModel(model.kv_cache_spec, size_bytes, make_runner, rows, model.expert_tokens, model)

    def build_sharing(
        self,
        request: LoadRequest,
        part: ModelConfig,
        weights: WeightLoader,
        shared: SharedMixes,
        read_lora: LoraReader | None = None,
        taps: Taps | None = None,
    ) -> HostModel:
        """Return a whole model but for experts, which the workers of several engines share; torch runs it.

        Args:
            request: the model and its options.
            part: the description of the model with the experts of this worker.
            weights: the tensors of this worker.
            shared: creates the Mix of each layer.
            read_lora, taps: see build_part.

        Raises ModelError if the model cannot run with the settings.
        """
        self.check_torch(request, _SHARED)
        if self.team is not None:
            log.info("model.runs_on_torch", architecture=part.architecture, reason=_SHARED)
        rows, plain = None if read_lora is None else LoraRows(read_lora), host_parameters(request, weights, self.team)
        parameters = plain if rows is None else AdaptedParameters(plain, rows)
        model = HostDecoder(part, parameters, mixes=shared, taps=taps or NoTaps())
        make_runner = runner_of(request, model, None, rows, model.attention.settle_drafts)
        size_bytes = weights.num_parameters * _FLOAT32_BYTES - plain.saved_bytes
        return HostModel(model.kv_cache_spec, size_bytes, make_runner, rows, model.expert_tokens, model, shared)

    def build_bidirectional(self, request: LoadRequest, config: ModelConfig, weights: WeightLoader) -> BidirectionalDecoder:
        """Return a decoder with bidirectional attention, run by torch; raise ModelError if it cannot run with the settings."""
        refuse_loras(request, "bidirectional decoders")
        refuse_bfloat16(request, "a bidirectional decoder")
        self.check_torch(request, "A bidirectional decoder")
        return BidirectionalDecoder(config, host_parameters(request, weights, self.team))

    def build_part(
        self,
        request: LoadRequest,
        config: ModelConfig,
        weights: WeightLoader,
        ranks: RankChannels,
        read_lora: LoraReader | None = None,
        taps: LayerTaps | None = None,
        *,
        experts: Shard | None = None,
        shared: SharedMixes | None = None,
    ) -> HostModel:
        """Return one rank's part of a model; raise ModelError if it cannot run with the settings.

        The native program runs the same models as on one rank, except for the cases of `_why_not_in_parts`.

        Args:
            request, config: the request and description of the whole model.
            weights: the tensors of this rank's part.
            ranks: the connections to the other ranks.
            read_lora: reads this rank's part of adapters; None: adapters are disabled.
            taps: read hidden states between layers, and pass them on to the leader; None: no taps.
            experts: the part of whole experts; None: a part of each expert.
            shared: creates the Mix of each layer; None: the ranks have all experts.
        """
        team = self.team
        reason = _why_not_native(config, team) or (_SHARED if shared else _why_not_in_parts(request, config, ranks.shard))
        if taps is not None or request.draft_method == "eagle3":  # all ranks run the same program
            reason = _PROVIDES_STATES
        if team is not None and not reason:
            return self._native_part(request, config, weights, ranks, team, read_lora)
        own_taps = taps or NoTaps()
        self.check_torch(request, reason)
        if team is not None:
            log.info("model.runs_on_torch", architecture=config.architecture, reason=reason)
        stage_facts, plain = stage_config(config, ranks.stage), host_parameters(request, weights, team)
        part = shard_config(stage_facts, ranks.shard, experts=experts)
        rows = None if read_lora is None else LoraRows(read_lora)
        parameters = plain if rows is None else AdaptedParameters(plain, rows)
        sums = ranks.sums if ranks.shard.size > 1 else None
        if not ranks.stage.is_first:
            stage = HostStage(part, parameters, ranks=sums, mix_of=shared, taps=own_taps)
            size_bytes = weights.num_parameters * _FLOAT32_BYTES - plain.saved_bytes
            return _stage_of(stage, ranks, own_taps, size_bytes, rows, stage.attention.settle_drafts)._replace(shared=shared)
        model = HostDecoder(
            part,
            parameters,
            ranks=sums,
            vocab_size=config.vocab_size,
            is_alone=False,
            taps=own_taps,
            mixes=shared,
        )
        size_bytes = weights.num_parameters * _FLOAT32_BYTES - plain.saved_bytes
        settle = model.attention.settle_drafts if part.state_size else None
        if ranks.is_leader:
            led = _led_by(request, config, model, ranks, own_taps, size_bytes, rows, settle)
            return led._replace(shared=shared)
        make_runner = partial(MemberRunner, ModelPart(model, ranks, own_taps), loras=rows, settle_drafts=settle)
        return HostModel(model.kv_cache_spec, size_bytes, make_runner, rows, shared=shared)

    def _native_part(
        self,
        request: LoadRequest,
        config: ModelConfig,
        weights: WeightLoader,
        ranks: RankChannels,
        team: Team,
        read_lora: LoraReader | None,
    ) -> HostModel:
        kv_cache_dtype = choose_kv_dtype(self._kv_cache_dtype, request, weights)
        matrices = choose_matrices(request, weights, team)
        loras, share, part = _native_loras(read_lora, request, team), WHOLE, stage_config(config, ranks.stage)
        if ranks.shard.size > 1:
            if request.quantization == "int8":
                check_blocks(config, ranks.shard.size, INT8.block)
            share, part = Share(ranks.shard, config.vocab_size, RankSums(ranks.sums)), shard_config(part, ranks.shard)
        if not ranks.stage.is_first:
            stage = NativeStage(part, weights, matrices, team, kv_cache_dtype, loras or NoNativeLoras(), share)
            return _stage_of(stage, ranks, NoTaps(), stage.weights_size_bytes, loras)
        native = NativeDecoder(
            part, weights, matrices, team, kv_cache_dtype=kv_cache_dtype, loras=loras or NoNativeLoras(), share=share
        )
        model = native if share.is_whole else NativeShard(native, config.vocab_size, ranks.sums)
        if ranks.is_leader:
            return _led_by(request, config, model, ranks, NoTaps(), native.weights_size_bytes, loras)
        make_runner = partial(MemberRunner, ModelPart(model, ranks, NoTaps()), loras=loras)
        return HostModel(model.kv_cache_spec, native.weights_size_bytes, make_runner, loras)

    def check_torch(self, request: LoadRequest, reason: str) -> None:
        """Raise ModelError if the settings need native kernels, for a model that torch has to run for this reason."""
        if self._is_required:
            raise ModelError(f"{reason} is not for the native kernels; run with cpu_kernels auto or torch.")
        if request.quantization == "int8":
            raise ModelError(
                f"Quantization {request.quantization!r} needs the native kernels, which do not run this model here."
            )
        if self._kv_cache_dtype in ("float16", "int8"):
            raise ModelError(
                f"kv_cache_dtype {self._kv_cache_dtype} needs the native kernels, which do not run this model here."
            )

    def _open_team(self, num_threads: int) -> Team | None:
        try:
            return Team(load_library(best_target()), num_threads)
        except NoLibraryError as error:
            if self._is_required:
                raise ModelError(f"The native kernels cannot be had: {error}.") from error
            log.warning(
                "native.unavailable",
                reason=str(error),
                consequence="models run through torch, which decodes about 8 times slower",
            )
            return None


def _native_loras(read: LoraReader | None, request: LoadRequest, team: Team) -> NativeLoras | None:
    if read is None or request.loras is None:
        return None
    return NativeLoras(read, team.library.tetrad_lanes(), request.loras.max_lora_rank)


def runner_of(
    request: LoadRequest,
    model: Model[M],
    pooling: Pooling | None,
    loras: ModelLoras | None = None,
    settle_drafts: Callable[[Ints], None] | None = None,
) -> Callable[..., Runner]:
    """Return a function that creates a model's runner.

    Args:
        request: has the settings of the sampler.
        model: the loaded model.
        pooling: pools the hidden states; None: the model only generates.
        loras, settle_drafts: see ModelRunner.
    """
    if pooling is None:
        return partial(ModelRunner, model, loras=loras, settle_drafts=settle_drafts, sampling=request.sampler)
    rows = partial(DecoderPooling, pooling.pooler, pooling.facts, model.normed)
    return partial(
        ModelRunner,
        model,
        pooling=rows,
        loras=loras,
        settle_drafts=settle_drafts,
        sampling=request.sampler,
    )


def _led_by(
    request: LoadRequest,
    config: ModelConfig,
    model: Model[M],
    ranks: RankChannels,
    taps: StageTaps,
    size_bytes: int,
    own: ModelLoras | None,
    settle_drafts: Callable[[Ints], None] | None = None,
) -> HostModel:
    loras = None if own is None else LedLoras(own)
    make_runner = partial(
        leading_runner,
        model,
        ranks,
        taps,
        loras=loras,
        settle_drafts=settle_drafts,
        sampling=request.sampler,
        num_readers=num_reading_stages(config, ranks.stage.size) * ranks.shard.size,
    )
    return HostModel(model.kv_cache_spec, size_bytes, make_runner, loras, decoder=model)


def _stage_of(
    stage: StageModel[M],
    ranks: RankChannels,
    taps: StageTaps,
    size_bytes: int,
    loras: ModelLoras | None,
    settle_drafts: Callable[[Ints], None] | None = None,
) -> HostModel:
    make_runner = partial(MemberRunner, StagePart(stage, ranks, taps), loras=loras, settle_drafts=settle_drafts)
    return HostModel(stage.kv_cache_spec, size_bytes, make_runner, loras)


def _why_not_native(config: ModelConfig, team: Team | None) -> str:
    """Return the reason why a model cannot run in the native program; an empty text if it can."""
    if team is None:
        return "A host without native kernels"
    if config.head_dim % team.library.tetrad_lanes() or config.head_dim > MAX_HEAD_DIM:
        return f"A head of {config.head_dim}"
    beyond = sorted(traits_of(config) - TRAITS)
    return f"A model with {', '.join(beyond)}" if beyond else ""


def _why_not_in_parts(request: LoadRequest, config: ModelConfig, shard: Shard) -> str:
    """Return the reason why a shard of the model cannot run in the native program; an empty text if it can."""
    if shard.size == 1:
        return ""
    if request.expert_parallel:
        return _SHARED
    return "A norm over the heads of several ranks" if Trait.WHOLE_HEAD_NORMS in traits_of(config) else ""
