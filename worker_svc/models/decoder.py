"""Torch decoder: runs a model of any family, built from its description, on any device.

Residuals are added in place: `hidden` is the residual stream. If a device has a faster program for a description
(native/decoder.py, cuda/decoder.py), tests compare that program with this one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Generic, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from tetrad.services.errors import InternalError
from tetrad.worker_svc.attention.interface import AttentionBackend, ByGroup, M
from tetrad.worker_svc.core.plan import Floats, Ints
from tetrad.worker_svc.kv_cache.state_rows import StateRows
from tetrad.worker_svc.layers.collectives import Collectives
from tetrad.worker_svc.layers.experts import MixOf
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.logits import scaled_and_capped
from tetrad.worker_svc.layers.norm import Norm, unchanged
from tetrad.worker_svc.layers.parameters import Lookup, Parameters
from tetrad.worker_svc.layers.step import AttendedRows
from tetrad.worker_svc.layers.vocabulary import SplitVocabulary, Vocabulary, WholeVocabulary
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.draft_head import NoTaps, Taps
from tetrad.worker_svc.models.layer_stack import NO_DEEP_ROWS, NO_STATES, DeepRows, LayerStack
from tetrad.worker_svc.models.layers import LayerReader


class GivenEmbeddings(NamedTuple):
    """Rows [N] int64 of a step's tokens, and the embeddings [N, hidden] that replace those of their ids; see GivenRows."""

    rows: torch.Tensor
    values: torch.Tensor
    deep: torch.Tensor | None = None  # [L, N, hidden]

    @property
    def deep_rows(self) -> DeepRows:
        """The rows that are added behind the first layers."""
        return NO_DEEP_ROWS if self.deep is None else DeepRows(self.rows, self.deep)


class Decoder(Generic[M]):
    """A decoder; it keeps no state between steps.

    Attributes:
        config: the given description, with the whole model's vocabulary size.

    Args:
        config: the model's description.
        parameters: the model's weights.
        attention: creates the attention of layers.
        mix_of: creates the Mix of a layer's experts.
        device: device of all tensors.
        ranks: the ranks that compute the model together, with `config` and `parameters` of this rank's part; None: one rank.
        vocab_size: vocabulary size of the whole model; None: the config's.
        taps: reads hidden states between layers.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        attention: AttentionBackend[M],
        mix_of: MixOf,
        device: torch.device = torch.device("cpu"),  # noqa: B008 - a constant
        ranks: Collectives | None = None,
        vocab_size: int | None = None,
        taps: Taps = NoTaps(),  # noqa: B008 - it has no state
    ) -> None:
        self.config = config if vocab_size is None else replace(config, vocab_size=vocab_size)
        read = LayerReader(config, parameters, attention, mix_of, ranks)
        is_tied = config.tie_word_embeddings or not parameters.has("lm_head.weight")
        size = config.vocab_size, config.hidden_size
        has_table = config.has_embeddings or (config.has_output and is_tied)
        self._table = table = parameters.embedding("model.embed_tokens.weight", *size) if has_table else None
        lookup: Lookup = _absent
        output: Linear = _absent
        self._positions: torch.Tensor | None = None
        self._embedding_norm: Norm = unchanged
        self._norm: Norm = unchanged
        self._enter = self._embedded if config.has_embeddings else _handed_on
        if config.has_embeddings and table is not None:
            lookup, self._positions = parameters.lookup("model.embed_tokens", table), self._read_positions(parameters)
        if config.has_embeddings and config.has_norm_of_embeddings:
            self._embedding_norm = read.norm("model.embed_norm")
        self._stack = LayerStack(config, read, device, taps)
        if config.has_output:
            self._norm = read.norm("model.norm")
            output = parameters.output("lm_head", table if is_tied else None, *size)
        whole = WholeVocabulary(lookup, output, self._finish)
        self._vocabulary: Vocabulary = whole if ranks is None else SplitVocabulary(whole, self.config.vocab_size, ranks)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: ByGroup[M],
        states: Mapping[int, StateRows] = NO_STATES,
        given: GivenEmbeddings | None = None,
        axes: torch.Tensor | None = None,
        attended: Sequence[AttendedRows] = (),
    ) -> torch.Tensor:
        """Return the residual stream [T, hidden] after the last layer; see LayerStack.add_to.

        A stage without embeddings takes the residual stream of the stage before in place of `token_ids`, and changes it.
        """
        hidden, deep = self._enter(token_ids, positions, given), NO_DEEP_ROWS if given is None else given.deep_rows
        self._stack.add_to(hidden, positions, caches, metadata, states, axes, deep, attended)
        return hidden

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [T, hidden] of ids [T], without adapters; this rank has the whole table.

        The caller may change the embeddings.
        """
        assert self._table is not None, "the embeddings are on another stage"
        return F.embedding(token_ids, self._table)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return hidden states [N, hidden] after the last norm."""
        return self._norm(hidden)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, vocab_size] float32 of hidden states [N, hidden]."""
        return self._vocabulary.logits(self._norm(hidden))

    def argmax(self, hidden: torch.Tensor) -> tuple[Ints, Floats]:
        """Return the ids [N] of the largest logits, and these logits [N]; works only on the host."""
        return self._vocabulary.argmax(self._norm(hidden))

    def _finish(self, logits: torch.Tensor) -> torch.Tensor:
        return scaled_and_capped(logits, self.config)

    def _embedded(self, token_ids: torch.Tensor, positions: torch.Tensor, given: GivenEmbeddings | None) -> torch.Tensor:
        hidden = self._vocabulary.embed(token_ids)
        if self.config.embedding_multiplier != 1:
            # Rounded to the type of embeddings, as in Gemma's training.
            hidden.mul_(torch.tensor(self.config.embedding_multiplier, dtype=hidden.dtype))
        if given is not None:
            hidden.index_copy_(0, given.rows, given.values.to(hidden.dtype))
        if self._positions is not None:
            hidden.add_(self._positions[positions])
        return self._embedding_norm(hidden)

    def _read_positions(self, parameters: Parameters) -> torch.Tensor | None:
        rows = self.config.num_learned_positions
        return parameters.embedding("model.embed_positions.weight", rows, self.config.hidden_size) if rows else None


def _handed_on(hidden: torch.Tensor, positions: torch.Tensor, given: GivenEmbeddings | None) -> torch.Tensor:  # noqa: ARG001
    """Return the hidden states of the stage before."""
    return hidden


def _absent(x: torch.Tensor) -> torch.Tensor:  # noqa: ARG001 - of Linear and Lookup
    """Raise InternalError: another stage has the embeddings, or the output layer."""
    raise InternalError("This stage of the model has no embeddings, or no output layer.")
