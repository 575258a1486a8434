"""Member: executes the leader's orders on a rank other than the first. Owned by the compute thread; knows no requests."""

from collections.abc import Callable
from typing import Any, Generic, NoReturn, Protocol

import torch

from tetrad.services.errors import FailedPrecondition, InternalError
from tetrad.worker_svc.attention.interface import M, MetadataBuilder
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.lora import ModelLoras
from tetrad.worker_svc.core.plan import GivenRows, Ints, SchedulerOutput
from tetrad.worker_svc.kv_cache.cache import KvCache, KvCacheSpec
from tetrad.worker_svc.models.draft_head import StageTaps
from tetrad.worker_svc.models.interface import Model, ModelSizes, StageModel
from tetrad.worker_svc.runner.model_runner import settle_nothing
from tetrad.worker_svc.runner.orders import Kind, ModelOrder, decode_moves, decode_step
from tetrad.worker_svc.runner.rank_channels import RankChannels


class Part(Protocol):
    """A member's part of a model."""

    @property
    def config(self) -> ModelSizes:
        """The sizes of the model."""

    @property
    def kv_cache_spec(self) -> KvCacheSpec:
        """The shape of the part's KV cache."""

    @property
    def attention(self) -> MetadataBuilder[Any]:
        """The builder of the part's attention metadata."""

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: Any,
        given: GivenRows | None,
    ) -> None:
        """Compute this part of a step, some tokens `given`, and send the hidden states that the next stage needs."""

    def compute_logits(self, kind: Kind, hidden: torch.Tensor) -> None:
        """Compute this part of the logits, or of their maxima, for hidden states [N, hidden]."""


class ModelPart(Generic[M]):
    """A shard of the first stage; see Part.

    Args:
        model: this rank's part of the model.
        ranks: the connections to the other ranks.
        taps: keep the hidden states that the leader's draft head reads, of the model's layers.
    """

    def __init__(self, model: Model[M], ranks: RankChannels, taps: StageTaps) -> None:
        self._model, self._ranks, self._taps = model, ranks, taps
        self.config, self.kv_cache_spec, self.attention = model.config, model.kv_cache_spec, model.attention

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: M,
        given: GivenRows | None,
    ) -> None:
        """See Part."""
        hidden = self._model.forward(token_ids, positions, caches, metadata, given)
        if self._ranks.stage.size > 1:
            self._ranks.send_hidden(self._taps.pack(hidden.clone()))  # the model reuses the tensor in the next step

    def compute_logits(self, kind: Kind, hidden: torch.Tensor) -> None:
        """See Part."""
        compute = self._model.logits if kind is Kind.LOGITS else self._model.argmax
        compute(hidden)


class StagePart(Generic[M]):
    """A shard of a stage after the first; see Part.

    Args:
        stage: the layers of this rank.
        ranks: the connections to the other ranks.
        taps: keep the hidden states that the leader's draft head reads, of these layers and those of earlier stages.
    """

    def __init__(self, stage: StageModel[M], ranks: RankChannels, taps: StageTaps) -> None:
        self._stage, self._ranks, self._taps = stage, ranks, taps
        self.config, self.kv_cache_spec, self.attention = stage.config, stage.kv_cache_spec, stage.attention

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: Any,
        given: GivenRows | None,
    ) -> None:
        """See Part."""
        width = (1 + self._taps.num_passed) * self._stage.hidden_size
        hidden = self._taps.unpack(self._ranks.expect_hidden(len(token_ids), width).wait())
        self._stage.add_to(hidden, token_ids, positions, caches, metadata, given)
        self._ranks.send_hidden(self._taps.pack(hidden))

    def compute_logits(self, kind: Kind, hidden: torch.Tensor) -> NoReturn:  # noqa: ARG002 - of the protocol
        """Raise InternalError: only the first stage has the output head."""
        raise InternalError(f"Order {kind.name} came to a stage without the vocabulary.")


class MemberRunner:
    """A Runner that executes orders instead of plans.

    Args:
        part: this rank's part of the model.
        layout: the same as the leader's; FailedPrecondition if the model has fewer positions than max_model_len.
        loras: this rank's part of the adapters; None: the model does not support adapters.
        settle_drafts: see ModelRunner.
    """

    num_requests = 0

    def __init__(
        self,
        part: Part,
        layout: KvLayout,
        loras: ModelLoras | None = None,
        settle_drafts: Callable[[Ints], None] | None = None,
    ) -> None:
        if layout.max_model_len > part.config.max_position_embeddings:
            raise FailedPrecondition(
                f"max_model_len {layout.max_model_len} exceeds the model's {part.config.max_position_embeddings} positions."
            )
        self._part, self.layout, self._loras = part, layout, loras
        self._settle_drafts = settle_drafts or settle_nothing
        self._kv_cache = KvCache(
            part.kv_cache_spec,
            num_blocks=layout.num_blocks,
            block_size=layout.block_size,
            num_host_blocks=layout.num_host_blocks,
        )

    def execute(self, plan: SchedulerOutput) -> NoReturn:
        """Raise InternalError: only the leader takes plans."""
        raise InternalError(f"Step {plan.step_id} came to a member of a worker group; its leader takes plans.")

    @torch.inference_mode()
    def obey(self, order: ModelOrder) -> None:
        """Execute an order: compute this rank's part of the leader's step, settle its drafts, or copy blocks."""
        if order.kind is Kind.FORWARD:
            self._forward(order)
        elif order.kind is Kind.MOVE_BLOCKS:
            self._kv_cache.move_blocks(*decode_moves(order.numbers))
        elif order.kind is Kind.SETTLE_DRAFTS:
            self._settle_drafts(order.numbers)  # rows of a member's step are its slots
        else:
            assert order.hidden is not None, f"{order.kind.name} without hidden states"
            self._select(order.numbers)
            self._part.compute_logits(order.kind, order.hidden)

    def forget_all(self) -> None:
        """Do nothing: a member has no requests."""

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Report completion only: the leader's dummy steps also run on this rank."""
        report(1, 1)

    def _forward(self, order: ModelOrder) -> None:
        inputs, tables, given, lora_ids = decode_step(order.numbers, order.hidden)
        self._select(lora_ids)
        metadata = self._part.attention.build_metadata(inputs, tables)
        token_ids, positions = torch.from_numpy(inputs.token_ids), torch.from_numpy(inputs.positions)
        self._part.forward(token_ids, positions, self._kv_cache.layers, metadata, given)

    def _select(self, lora_ids: Ints) -> None:
        if self._loras is not None:
            self._loras.select(lora_ids)
