"""Leader: a model whose other parts are on other ranks, for the model runner of rank 0.

Before the leader computes its own part, it sends the members an order to compute theirs; the layers sum the parts of all ranks.
The model runner knows nothing of ranks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.attention.interface import M, MetadataBuilder, Tables
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.lora import ModelLoras
from tetrad.worker_svc.core.media import ModelMedia
from tetrad.worker_svc.core.plan import Floats, GivenRows, Ints, SchedulerOutput
from tetrad.worker_svc.core.result import Runner
from tetrad.worker_svc.core.sampler_options import DEFAULT_SAMPLER, SamplerOptions
from tetrad.worker_svc.core.step_inputs import StepInputs
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.models.draft_head import StageTaps
from tetrad.worker_svc.models.interface import Model
from tetrad.worker_svc.runner.model_runner import ModelRunner
from tetrad.worker_svc.runner.orders import Kind, encode_moves, encode_rows, encode_step
from tetrad.worker_svc.runner.rank_channels import RankChannels
from tetrad.worker_svc.runner.staged_runner import StagedRunner


class LedStep(NamedTuple):
    """Metadata of the leader's own part, and the order for the members."""

    own: Any
    order: npt.NDArray[np.int64]


class LedPages:
    """The MetadataBuilder of a model on several ranks.

    Args:
        own: the MetadataBuilder of the leader's part.

    Attributes:
        slots: the slots [R] of the last step's rows.
    """

    def __init__(self, own: MetadataBuilder[M]) -> None:
        self._own, self.slots = own, _NONE

    def build_metadata(self, inputs: StepInputs, batch: Tables) -> LedStep:
        """See MetadataBuilder."""
        self.slots = inputs.slots
        return LedStep(self._own.build_metadata(inputs, batch), encode_step(inputs, batch))


class LedStates:
    """Settles the drafts of a step on all ranks, each of which has states of its layers.

    Args:
        settle_own: settles the drafts in the leader's part of the model; see ModelRunner.
        pages: knows the rows of the last step.
        ranks: the connections to the other ranks.
    """

    def __init__(self, settle_own: Callable[[Ints], None], pages: LedPages, ranks: RankChannels) -> None:
        self._settle_own, self._pages, self._ranks = settle_own, pages, ranks

    def settle_drafts(self, num_tokens: Ints) -> None:
        """Settle the drafts of the last step; `num_tokens` [slots] counts the known tokens after the verification."""
        self._ranks.send_order(np.concatenate([[Kind.SETTLE_DRAFTS], num_tokens[self._pages.slots]]))
        self._settle_own(num_tokens)


class LedLoras:
    """The leader's part of the adapters. It records the selection, which orders pass to the members; see ModelLoras.

    Attributes:
        selected: the adapter ids of the rows of the next computation; empty: no row has an adapter.

    Args:
        own: applies the leader's part of the adapters.
    """

    def __init__(self, own: ModelLoras) -> None:
        self._own, self.selected = own, _NONE
        self.read, self.install, self.remove, self.clear, self.has = own.read, own.install, own.remove, own.clear, own.has

    def select(self, lora_ids: Ints) -> None:
        """See ModelLoras."""
        self._own.select(lora_ids)
        self.selected = lora_ids if lora_ids.any() else _NONE


class LedModel:
    """The Model of a group: it sends orders to the members and computes the leader's part; see models.interface.

    Args:
        model: the leader's part of the model.
        ranks: the connections to the other ranks.
        taps: keep the hidden states that a draft head reads, of the layers of the leader's stage.
        loras: the leader's part of the adapters; None: the model does not support adapters.
        num_readers: number of ranks, the first ones, whose layers read given rows.
    """

    def __init__(
        self, model: Model[M], ranks: RankChannels, taps: StageTaps, loras: LedLoras | None = None, num_readers: int = 1
    ) -> None:
        self._model, self._ranks, self._taps, self._loras, self._num_readers = model, ranks, taps, loras, num_readers
        self.config, self.kv_cache_spec = model.config, model.kv_cache_spec
        self.embedding_size = model.config.embedding_size
        self.attention = LedPages(model.attention)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: LedStep,
        given: GivenRows | None = None,
    ) -> torch.Tensor:
        """Return hidden states [T, hidden] after the last layer of the leader's stage, and send them to the next stage."""
        rows, values = encode_rows(given)
        self._ranks.send_order(self._adapted(np.concatenate([metadata.order, rows])), values, num_readers=self._num_readers)
        hidden = self._model.forward(token_ids, positions, caches, metadata.own, given)
        if self._ranks.stage.size > 1:
            self._ranks.send_hidden(self._taps.pack(hidden.clone()))  # the model reuses the tensor in the next step
        return hidden

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return hidden states [N, hidden] after the last norm, which every rank has."""
        return self._model.normed(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, vocab_size] float32 of hidden states [N, hidden]."""
        self._ranks.send_order(self._adapted(np.array([Kind.LOGITS])), hidden, to_stage=True)
        return self._model.logits(hidden)

    def argmax(self, hidden: torch.Tensor) -> tuple[Ints, Floats]:
        """Return the token ids [N] of the largest logits, and these logits [N]."""
        self._ranks.send_order(self._adapted(np.array([Kind.ARGMAX])), hidden, to_stage=True)
        return self._model.argmax(hidden)

    def _adapted(self, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return an order with the adapter ids of its rows appended."""
        return order if self._loras is None else np.concatenate([order, self._loras.selected])


class LedKvCache(KvCache):
    """The leader's KV cache; copies of blocks between tiers are ordered on every rank."""

    ranks: RankChannels

    def move(self, plan: SchedulerOutput) -> None:
        """See KvCache."""
        order = encode_moves(plan)
        if order is not None:
            self.ranks.send_order(order)
        super().move(plan)


def leading_runner(
    model: Model[M],
    ranks: RankChannels,
    taps: StageTaps,
    layout: KvLayout,
    loras: LedLoras | None = None,
    settle_drafts: Callable[[Ints], None] | None = None,
    sampling: SamplerOptions = DEFAULT_SAMPLER,
    media: ModelMedia | None = None,
    num_readers: int = 1,
) -> Runner:
    """Return the runner of rank 0.

    Args:
        model: the leader's part of the model.
        ranks: the connections to the other ranks.
        taps: keep the hidden states that a draft head reads.
        layout: see ModelRunner.
        loras: the leader's part of the adapters; None: the model does not support adapters.
        settle_drafts: settles the drafts in the leader's part; None: the model has no states.
        sampling, media: see ModelRunner.
        num_readers: see LedModel.
    """

    def make_cache(*args: object, **options: object) -> LedKvCache:
        cache = LedKvCache(*args, **options)  # type: ignore[arg-type] # passed through
        cache.ranks = ranks
        return cache

    led = LedModel(model, ranks, taps, loras, num_readers)
    settle = None if settle_drafts is None else LedStates(settle_drafts, led.attention, ranks).settle_drafts
    options: dict[str, Any] = {"loras": loras, "settle_drafts": settle, "sampling": sampling, "media": media}
    if ranks.stage.size > 1:
        return StagedRunner(led, layout, ranks, taps, make_cache=make_cache, **options)
    return ModelRunner(led, layout, make_cache=make_cache, **options)


_NONE: Ints = np.empty(0, np.int64)
