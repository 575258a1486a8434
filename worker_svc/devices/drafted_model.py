"""Drafted model: a LoadedModel on the CPU with a drafter that proposes its next tokens.

Model and drafter have separate keys and values under the same block ids, so a block takes the memory of both.
"""

from dataclasses import replace
from typing import Any, Protocol

from tetrad.services.errors import FailedPrecondition, ModelError
from tetrad.worker_svc.core.device import CountsExperts, KvGroup, KvLayout, LoadedModel, SharesExperts
from tetrad.worker_svc.core.layout_check import check_host_cache
from tetrad.worker_svc.core.media import TakesMedia
from tetrad.worker_svc.core.result import Runner
from tetrad.worker_svc.devices.cpu_models import HostModel
from tetrad.worker_svc.kv_cache.cache import KvCache, KvCacheSpec
from tetrad.worker_svc.runner.drafts import HostDrafts
from tetrad.worker_svc.runner.model_drafts import ModelDrafts
from tetrad.worker_svc.runner.model_runner import ModelRunner

NOT_DECODERS = (
    "speculative_config.model: both models must be decoders that only generate; a model that also embeds takes drafts of ngram "
    "or suffix."
)


class Drafter(Protocol):
    """The loaded draft model or draft head of a model, which proposes the model's next tokens."""

    @property
    def weights_size_bytes(self) -> int:
        """The size of the drafter's weights in bytes."""

    @property
    def kv_cache_spec(self) -> KvCacheSpec:
        """The shape of the drafter's KV cache."""

    def check_layout(self, layout: KvLayout) -> None:
        """Raise FailedPrecondition if the drafter cannot draft for sequences of this layout."""

    def drafts(self, runner: ModelRunner[Any], cache: KvCache) -> HostDrafts:
        """Return what proposes tokens after the steps of `runner`; `cache` is the drafter's KV cache."""


class DraftModel:
    """A Drafter with a smaller model; see Drafter.

    Args:
        model: the draft model.
        host: the same model, with its program on the CPU.
    """

    def __init__(self, model: LoadedModel, host: HostModel) -> None:
        self._model, self._decoder = model, host.decoder
        self.kv_cache_spec, self.weights_size_bytes = host.kv_cache_spec, model.info.weights_size_bytes

    def check_layout(self, layout: KvLayout) -> None:
        """Raise FailedPrecondition if sequences can be longer than the draft model's largest position."""
        check_positions(self._model, layout)

    def drafts(self, runner: ModelRunner[Any], cache: KvCache) -> ModelDrafts[Any]:
        """See Drafter."""
        assert self._decoder is not None
        return ModelDrafts(runner, self._decoder, cache)


class DraftedModel:
    """The LoadedModel of a target model and its drafter; see LoadedModel.

    The drafter's keys and values are under the ids of the first group's blocks. The blocks of other groups, which have states,
    leave the drafter's part unused.

    Args:
        target: the model that samples; its first KV group has full attention, all others have it too or have states.
        drafter: proposes tokens.
    """

    def __init__(self, target: LoadedModel, drafter: Drafter) -> None:
        self._target, self._drafter = target, drafter
        size_bytes = target.info.weights_size_bytes + drafter.weights_size_bytes
        self.info, self.loras = replace(target.info, weights_size_bytes=size_bytes), target.loras
        self.media = target.media if isinstance(target, TakesMedia) else None
        self.expert_tokens = target.expert_tokens if isinstance(target, CountsExperts) else ()

    @property
    def is_shared(self) -> bool:
        """See SharesExperts."""
        return isinstance(self._target, SharesExperts) and self._target.is_shared

    def meet(self) -> None:
        """See SharesExperts."""
        if isinstance(self._target, SharesExperts):
            self._target.meet()

    def kv_groups(self, block_size: int) -> tuple[KvGroup, ...]:
        """Return the target's groups; the size of a block is the sum of the target's and the drafter's blocks."""
        return with_drafts(self._target.kv_groups(block_size), self._drafter.kv_cache_spec, block_size)

    def make_runner(self, layout: KvLayout) -> Runner:
        """Allocate both KV caches and return the target's runner, which drafts.

        Raises FailedPrecondition if memory is too small, or sequences can be too long for the drafter.
        """
        self._drafter.check_layout(layout)
        check_host_cache(layout, self.kv_groups(layout.block_size)[0].block_size_bytes)
        runner = self._target.make_runner(layout)
        assert isinstance(runner, ModelRunner)
        cache = KvCache(
            self._drafter.kv_cache_spec,
            num_blocks=layout.num_blocks,
            block_size=layout.block_size,
            num_host_blocks=layout.num_host_blocks,
        )
        runner.draft_with(self._drafter.drafts(runner, cache))
        return runner

    def sleep(self) -> None:
        """Do nothing: the weights are in host memory already."""

    def wake_up(self) -> None:
        """Do nothing: the weights have not moved."""


def with_drafts(groups: tuple[KvGroup, ...], drafter: KvCacheSpec, block_size: int) -> tuple[KvGroup, ...]:
    """Return a target's KV groups with the drafter's part of their blocks, which states make longer than `block_size`."""
    drafts = drafter.block_size_bytes(groups[0].block_size or block_size)
    return tuple(replace(group, block_size_bytes=group.block_size_bytes + drafts) for group in groups)


def check_positions(drafter: LoadedModel, layout: KvLayout) -> None:
    """Raise FailedPrecondition if sequences can be longer than a draft model's largest position."""
    longest = drafter.info.max_position_embeddings
    if layout.max_model_len > longest:
        raise FailedPrecondition(
            f"max_model_len {layout.max_model_len} exceeds the {longest} positions of the draft model; lower it."
        )


def check_same_vocabulary(target: LoadedModel, vocab_size: int) -> None:
    """Raise ModelError unless the drafter's vocabulary has the same size as the target's."""
    if target.info.vocab_size != vocab_size:
        raise ModelError(
            f"Target and draft model should have the same vocabulary size. The target has {target.info.vocab_size} tokens, "
            f"the draft model {vocab_size}."
        )


def check_target(target: LoadedModel) -> None:
    """Raise ModelError if no drafter of the worker can draft for this model, which samples.

    A drafter uses the blocks of its first KV group, which must keep all tokens.
    """
    if target.info.is_encoder_decoder:
        raise ModelError("speculative_config.method: a drafter does not read what an encoder reads; use ngram for this model.")
    groups = target.kv_groups(16)
    if target.info.pooling is not None or not any(group.is_state for group in groups):
        check_sees_all("target", target)
    elif groups[0].is_state:
        raise ModelError("speculative_config.method: all layers of the target have states; a drafter needs one with attention.")
    elif any(group.sliding_window is not None for group in groups):
        raise ModelError("speculative_config.method: a target with states must have no windows; some of its layers have one.")


def check_sees_all(name: str, model: LoadedModel) -> None:
    """Raise ModelError if a model, the target or the draft model, pools or has layers with sliding windows or states."""
    groups = model.kv_groups(16)
    if model.info.pooling is not None:
        raise ModelError(NOT_DECODERS)
    if len(groups) != 1 or groups[0].sliding_window is not None or groups[0].is_state:
        raise ModelError(
            f"speculative_config.model: all layers of the {name} must see all tokens; some have windows or states."
        )
