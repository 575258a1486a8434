"""Encoder: the stack of layers over packed prompts, in torch, in float32.

Called by the pooling runner, on the compute thread. Every product is over the tokens that there are; attention runs over all
prompts of one length together. Where there are native kernels, native/encoder.py computes the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812

from tetrad.worker_svc.layers.linear import Linear, LinearFactory
from tetrad.worker_svc.layers.rotary import TurnTable, rotary_of
from tetrad.worker_svc.model_facts.config import Rope
from tetrad.worker_svc.model_facts.encoder import EncoderConfig
from tetrad.worker_svc.models.encoder_weights import EncoderWeights, Parameters
from tetrad.worker_svc.models.packed_prompts import Embeddings, PackedPrompts

Norm = Callable[[torch.Tensor], torch.Tensor]
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


class Encoder:
    """A loaded encoder; see PackedEncoder.

    Args:
        config: its facts.
        weights: its tensors, each read once.
        make_linear: holds a weight as the device likes it best.
    """

    def __init__(self, config: EncoderConfig, weights: EncoderWeights, make_linear: LinearFactory) -> None:
        self.config, self.vocab_size = config, config.vocab_size
        self._embeddings = Embeddings(config, weights)
        self._embedding_norm = self._norm(weights.norm(weights.names.embedding_norm))
        tables = {rope: TurnTable(rotary_of(rope.dim, rope.theta, rope.scaling)) for rope in config.ropes}
        self._layers = [self._read_layer(weights, make_linear, index, tables) for index in range(config.num_layers)]
        self._final_norm = self._norm(weights.norm(weights.names.final_norm)) if config.norms_first else _unchanged
        self._activation = ACTIVATION_FUNCTIONS[config.activation]

    def forward(self, prompts: PackedPrompts) -> torch.Tensor:
        """Return the last layer's hidden states [T, hidden_size]."""
        groups = [torch.from_numpy(indices) for _, indices in prompts.groups_of_equal_length()]
        positions = torch.from_numpy(prompts.positions)
        x = self._embedding_norm(self._embeddings.of(prompts))
        norms_first = self.config.norms_first
        for layer in self._layers:
            read = layer.attention_norm(x) if norms_first else x
            x = x + layer.attention_out(self._attend(self._turn(layer, layer.qkv(read), positions), groups, layer.window))
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
            attention_norm=self._norm(weights.norm(names.attention_norm.format(index))) if has_norm else _unchanged,
            gate_up=make_linear(*weights.joined("gate_up", gate_up, index, size, hidden)),
            down=make_linear(*weights.matrix("down", names.down.format(index), hidden, size)),
            output_norm=self._norm(weights.norm(names.output_norm.format(index))),
            turns=tables[config.ropes[index]] if config.ropes else None,
            window=config.windows[index] if config.windows else 0,
        )

    def _norm(self, parameters: Parameters) -> Norm:
        weight, bias = parameters
        return lambda x: F.layer_norm(x, (self.config.hidden_size,), weight, bias, self.config.norm_eps)

    def _gated(self, x: torch.Tensor) -> torch.Tensor:
        if not self.config.is_gated:
            return self._activation(x)
        gate, up = x.chunk(2, dim=-1)
        return self._activation(gate) * up

    def _turn(self, layer: _Layer, qkv: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Turn queries and keys [T, 3 * hidden_size], whose halves of a pair are apart, in place."""
        if layer.turns is None:
            return qkv
        turns = layer.turns.up_to(int(positions.max()) + 1)[positions]
        cosines, sines = turns.unsqueeze(1).chunk(2, dim=-1)
        half = cosines.shape[-1]
        heads = qkv[:, : 2 * self.config.hidden_size].view(len(qkv), -1, self.config.head_dim)
        first, second = heads[..., :half].clone(), heads[..., half : 2 * half].clone()
        heads[..., :half] = first * cosines - second * sines
        heads[..., half : 2 * half] = second * cosines + first * sines
        return qkv

    def _attend(self, qkv: torch.Tensor, groups: Sequence[torch.Tensor], window: int) -> torch.Tensor:
        """Return the attention's output [T, hidden_size]: a token sees all of its own prompt (Vaswani et al. 2017, eq. 1)."""
        heads, head_dim = self.config.num_heads, self.config.head_dim
        out = torch.empty(len(qkv), self.config.hidden_size)
        for indices in groups:  # [B, L]
            batch, length = indices.shape
            query, key, value = qkv[indices].view(batch, length, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
            places = torch.arange(length)
            mask = (places[:, None] - places).abs() <= window if window else None
            attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            out[indices] = attended.transpose(1, 2).reshape(batch, length, -1)
        return out


def _unchanged(x: torch.Tensor) -> torch.Tensor:
    return x
