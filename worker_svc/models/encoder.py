"""Torch encoder: runs the layers of an encoder over packed prompts, on any device.

Called by the encoder runner, on the compute thread. Products compute only existing tokens, without padding; attention runs over
groups of prompts: prompts of equal length on the host, padded prompts of similar length on a device. No part waits for the
device. With native kernels, native/encoder.py computes the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from tetrad.worker_svc.layers.linear import Linear, LinearFactory
from tetrad.worker_svc.layers.norm import LayerNorm, Norm, unchanged
from tetrad.worker_svc.layers.rotary import TurnTable, rotary_of
from tetrad.worker_svc.model_facts.config import Rope
from tetrad.worker_svc.model_facts.encoder import EncoderConfig
from tetrad.worker_svc.models.encoder_weights import EncoderWeights, Parameters
from tetrad.worker_svc.models.packed_prompts import Embeddings, PackedPrompts, PromptGroup, Upload, rows_summed_by_torch

ACTIVATION_FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: Linear
    attention_out: Linear
    attention_norm: Norm
    gate_up: Linear
    down: Linear
    output_norm: Norm
    turns: TurnTable | None
    window: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Prompts [B, L] whose attention is computed together.

    Attributes:
        tokens: [B, L], indices of the prompts' tokens among all tokens.
        are_tokens: [B, 1, 1, L], false after a prompt's end; None: all prompts have L tokens.
        rows: indices of the B * L places that are tokens; None: all are.
        targets: indices of these tokens among all tokens.
    """

    tokens: torch.Tensor
    are_tokens: torch.Tensor | None
    rows: torch.Tensor | None
    targets: torch.Tensor

    @classmethod
    def of(cls, group: PromptGroup, upload: Upload) -> "_Group":
        are_tokens = np.arange(group.tokens.shape[1]) < group.lengths[:, None]
        tokens = upload(group.tokens)
        if are_tokens.all():
            return cls(tokens, None, None, tokens.flatten())
        rows, targets = upload(np.flatnonzero(are_tokens)), upload(group.tokens[are_tokens])
        return cls(tokens, upload(are_tokens)[:, None, None, :], rows, targets)

    def mask(self, window: int) -> torch.Tensor | None:
        """Return the keys that each query attends to; None: all. `window`: number of tokens on each side, 0: all."""
        if not window:
            return self.are_tokens
        places = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        are_near = (places[:, None] - places).abs() <= window
        return are_near if self.are_tokens is None else are_near & self.are_tokens

    def only_tokens(self, attended: torch.Tensor) -> torch.Tensor:
        """Return the rows of `attended` [B * L, ...] that are tokens."""
        return attended if self.rows is None else attended.index_select(0, self.rows)


class Encoder:
    """A loaded encoder; see PackedEncoder.

    Args:
        config: the encoder's description.
        weights: the encoder's tensors; each is read once.
        make_linear: creates linear layers in the best form for the device.
        upload: copies a step's inputs to the device of the weights.
        groups_of: returns groups of prompts whose attention is computed together.
    """

    def __init__(
        self,
        config: EncoderConfig,
        weights: EncoderWeights,
        make_linear: LinearFactory,
        upload: Upload = torch.from_numpy,
        groups_of: Callable[[PackedPrompts], Sequence[PromptGroup]] = PackedPrompts.groups_of_equal_length,
    ) -> None:
        self.config, self.vocab_size = config, config.vocab_size
        self._upload, self._groups_of = upload, groups_of
        self._embeddings = Embeddings(config, weights, partial(rows_summed_by_torch, upload))
        self._embedding_norm = self._norm(weights.norm(weights.names.embedding_norm))
        tables = {rope: TurnTable(rotary_of(rope.dim, rope.theta, rope.scaling).to(weights.device)) for rope in config.ropes}
        self._layers = [self._read_layer(weights, make_linear, index, tables) for index in range(config.num_layers)]
        self._final_norm = self._norm(weights.norm(weights.names.final_norm)) if config.norms_first else unchanged
        self._activation = ACTIVATION_FUNCTIONS[config.activation]

    def forward(self, prompts: PackedPrompts) -> torch.Tensor:
        """Return the last layer's hidden states [T, hidden_size]."""
        groups = [_Group.of(group, self._upload) for group in self._groups_of(prompts)]
        positions, longest = self._upload(prompts.positions), int(prompts.lengths.max())
        x = self._embedding_norm(self._embeddings.of(prompts))
        norms_first = self.config.norms_first
        for layer in self._layers:
            read = layer.attention_norm(x) if norms_first else x
            qkv = self._turn(layer, layer.qkv(read), positions, longest)
            x = x + layer.attention_out(self._attend(qkv, groups, layer.window))
            x = x if norms_first else layer.attention_norm(x)
            x = x + layer.down(self._gated(layer.gate_up(layer.output_norm(x) if norms_first else x)))
            x = x if norms_first else layer.output_norm(x)
        return self._final_norm(x)

    def _read_layer(
        self, weights: EncoderWeights, make_linear: LinearFactory, index: int, tables: dict[Rope, TurnTable]
    ) -> _Layer:
        config, names = self.config, weights.names
        hidden, size = config.hidden_size, config.intermediate_size
        gate_up = (names.gate, names.up) if config.is_gated else (names.up,)
        has_norm = index or config.has_first_norm
        return _Layer(
            qkv=make_linear(*weights.joined("qkv", (names.query, names.key, names.value), index, hidden, hidden)),
            attention_out=make_linear(*weights.matrix("attention_out", names.attention_out.format(index), hidden, hidden)),
            attention_norm=self._norm(weights.norm(names.attention_norm.format(index))) if has_norm else unchanged,
            gate_up=make_linear(*weights.joined("gate_up", gate_up, index, size, hidden)),
            down=make_linear(*weights.matrix("down", names.down.format(index), hidden, size)),
            output_norm=self._norm(weights.norm(names.output_norm.format(index))),
            turns=tables[config.ropes[index]] if config.ropes else None,
            window=config.windows[index] if config.windows else 0,
        )

    def _norm(self, parameters: Parameters) -> Norm:
        return LayerNorm(*parameters, self.config.norm_eps)

    def _gated(self, x: torch.Tensor) -> torch.Tensor:
        if not self.config.is_gated:
            return self._activation(x)
        gate, up = x.chunk(2, dim=-1)
        return self._activation(gate) * up

    def _turn(self, layer: _Layer, qkv: torch.Tensor, positions: torch.Tensor, longest: int) -> torch.Tensor:
        """Rotate queries and keys [T, 3 * hidden_size] in place; the two rows of a pair are in different halves of a head."""
        if layer.turns is None:
            return qkv
        turns = layer.turns.up_to(longest)[positions]
        cosines, sines = turns.unsqueeze(1).chunk(2, dim=-1)
        half = cosines.shape[-1]
        heads = qkv[:, : 2 * self.config.hidden_size].view(len(qkv), -1, self.config.head_dim)
        first, second = heads[..., :half].clone(), heads[..., half : 2 * half].clone()
        heads[..., :half] = first * cosines - second * sines
        heads[..., half : 2 * half] = second * cosines + first * sines
        return qkv

    def _attend(self, qkv: torch.Tensor, groups: Sequence[_Group], window: int) -> torch.Tensor:
        """Return the attention's output [T, hidden_size], within each prompt (Vaswani et al. 2017, eq. 1)."""
        heads, head_dim = self.config.num_heads, self.config.head_dim
        out = qkv.new_empty(len(qkv), self.config.hidden_size)
        for group in groups:
            batch, length = group.tokens.shape
            query, key, value = qkv[group.tokens].view(batch, length, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=group.mask(window))
            rows = attended.transpose(1, 2).reshape(batch * length, -1)
            out.index_copy_(0, group.targets, group.only_tokens(rows))
        return out
