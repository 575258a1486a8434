"""The torch decoder on the host, with the interface that the runner calls."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from tetrad.worker_svc.attention.interface import Tables
from tetrad.worker_svc.attention.paged_metadata import PagedMetadata
from tetrad.worker_svc.attention.torch_paged import TorchPagedAttention
from tetrad.worker_svc.core.plan import GivenRows, Ints
from tetrad.worker_svc.core.step_inputs import StepInputs
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec
from tetrad.worker_svc.kv_cache.layer_groups import groups_of
from tetrad.worker_svc.kv_cache.state_rows import DraftedStates, StateRows, build_state_rows
from tetrad.worker_svc.layers.collectives import Collectives
from tetrad.worker_svc.layers.experts import CountingMixOf, HostMixes, MixOf
from tetrad.worker_svc.layers.parameters import Parameters
from tetrad.worker_svc.layers.step import NO_SINK, AttendedRows
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.decoder import Decoder, GivenEmbeddings
from tetrad.worker_svc.models.draft_head import NoTaps, Taps
from tetrad.worker_svc.models.layer_stack import NO_DEEP_ROWS, LayerStack
from tetrad.worker_svc.models.layers import LayerReader


class HostStep(NamedTuple):
    """The metadata of a step, by group number: pages for groups with attention, rows for groups with states.

    `axes` are those of StepInputs; `attended` is that of Step.
    """

    pages: Mapping[int, PagedMetadata]
    states: Mapping[int, StateRows]
    axes: torch.Tensor | None = None
    attended: Sequence[AttendedRows] = ()


class HostSteps:
    """The MetadataBuilder of host steps.

    Args:
        attention: builds the metadata of groups with attention; None: no group gathers pages.
        state_groups: numbers of the groups with states.

    Attributes:
        drafted: the drafts of the last step, for each group with states.
    """

    def __init__(self, attention: TorchPagedAttention | None, state_groups: tuple[int, ...]) -> None:
        self._attention, self._state_groups = attention, state_groups
        self.drafted: list[DraftedStates] = []

    def build_metadata(self, inputs: StepInputs, batch: Tables) -> HostStep:
        """See MetadataBuilder."""
        states = {group: build_state_rows(inputs, batch, group) for group in self._state_groups}
        self.drafted = [rows.drafted for rows in states.values()]
        pages = self._attention.build_metadata(inputs, batch) if self._attention else {}
        axes = None if inputs.axes is None else torch.from_numpy(inputs.axes)
        return HostStep(pages, states, axes, tuple(_attended(inputs)))

    def settle_drafts(self, num_tokens: Ints) -> None:
        """Change the states as the accepted drafts of the last step do; `num_tokens` [slots] counts the sampled tokens."""
        for drafted in self.drafted:
            drafted.settle(num_tokens)


class HostDecoder:
    """A decoder in float32 in host memory; see Model.

    Args:
        config: the model's description.
        parameters: the model's weights.
        ranks, vocab_size: see Decoder.
        is_alone: whether this rank computes the whole model; otherwise, embeddings cannot replace token ids.
        taps: reads hidden states between layers.
        mixes: creates the Mix of each layer; None: this rank has all experts.

    Attributes:
        expert_tokens: see HostMixes.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        *,
        ranks: Collectives | None = None,
        vocab_size: int | None = None,
        is_alone: bool = True,
        taps: Taps = NoTaps(),  # noqa: B008 - it has no state
        mixes: CountingMixOf | None = None,
    ) -> None:
        attention, self.attention = host_attention(config)
        mixes = mixes or HostMixes()
        self._decoder = Decoder(config, parameters, attention, mixes, ranks=ranks, vocab_size=vocab_size, taps=taps)
        self.config, self.expert_tokens = self._decoder.config, mixes.expert_tokens
        self.kv_cache_spec = host_cache_spec(config)
        self.logits, self.argmax, self.normed = self._decoder.logits, self._decoder.argmax, self._decoder.normed
        self.embed = self._decoder.embed
        self.embedding_size = config.embedding_size if is_alone else 0

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: HostStep,
        given: GivenRows | None = None,
    ) -> torch.Tensor:
        """Return the residual stream [T, hidden] after the last layer."""
        its = None if given is None else _embeddings(given)
        return self._decoder.forward(
            token_ids, positions, caches, metadata.pages, metadata.states, its, metadata.axes, metadata.attended
        )


class HostStage:
    """A stage of a pipeline after the first one, in float32 in host memory; see StageModel.

    Args:
        config: the description of the stage.
        parameters: the stage's weights.
        ranks: the ranks that share each layer; None: this rank has whole layers.
        mix_of: creates the Mix of each layer; None: this rank has all experts.
        taps: reads hidden states between layers.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        *,
        ranks: Collectives | None = None,
        mix_of: MixOf | None = None,
        taps: Taps = NoTaps(),  # noqa: B008 - it has no state
    ) -> None:
        attention, self.attention = host_attention(config)
        self.config, self.hidden_size = config, config.hidden_size
        self.kv_cache_spec = host_cache_spec(config)
        read = LayerReader(config, parameters, attention, mix_of or HostMixes(), ranks)
        self._stack = LayerStack(config, read, taps=taps)

    def add_to(
        self,
        hidden: torch.Tensor,
        token_ids: torch.Tensor,  # noqa: ARG002 - of the protocol
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: HostStep,
        given: GivenRows | None = None,
    ) -> None:
        """See StageModel."""
        deep = NO_DEEP_ROWS if given is None else _embeddings(given).deep_rows
        self._stack.add_to(hidden, positions, caches, metadata.pages, metadata.states, metadata.axes, deep)


def _attended(inputs: StepInputs) -> Iterator[AttendedRows]:
    for row, encoded in enumerate(inputs.encoded):
        if encoded is not None:
            first = int(inputs.first_token[row])
            sink = inputs.sinks[row] if inputs.sinks else None
            yield AttendedRows(slice(first, first + int(inputs.num_scheduled[row])), encoded, sink or NO_SINK)


def _embeddings(given: GivenRows) -> GivenEmbeddings:
    deep = None if given.deep is None else torch.from_numpy(given.deep)
    return GivenEmbeddings(torch.from_numpy(given.rows), torch.from_numpy(given.values), deep)


def host_attention(config: ModelConfig) -> tuple[TorchPagedAttention, HostSteps]:
    """Return the attention of a model's layers, and the builder of step metadata, for groups with layers on this rank."""
    groups = [(number, group) for number, group in enumerate(groups_of(config)) if group.layers]
    attention = TorchPagedAttention(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        windows={number: group.sliding_window for number, group in groups if not group.is_state},
    )
    return attention, HostSteps(attention, tuple(number for number, group in groups if group.is_state))


def host_cache_spec(config: ModelConfig) -> KvCacheSpec:
    """Return the shape of the KV cache of a model in host memory."""
    return KvCacheSpec(groups_of(config), config.num_kv_heads, config.head_dim, torch.float32, state_size=config.state_size)
