"""Native encoder: runs the computation of models/encoder.py with the native kernels, as one program over packed prompts.

Products use tiles of bfloat16 pairs if the processor has such instructions (src/matmul_split.h). Otherwise they run in fixed
point if that is precise enough and the processor has instructions for it (src/matmul_fixed.h), or in float32. A prompt's
results are bit for bit the same, alone or together with other prompts in a step.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.layers.rotary import rotary_of
from tetrad.worker_svc.model_facts.config import Activation, Rope
from tetrad.worker_svc.model_facts.encoder import EncoderConfig
from tetrad.worker_svc.models.encoder_weights import EncoderWeights, Parameters
from tetrad.worker_svc.models.packed_prompts import Embeddings, PackedPrompts
from tetrad.worker_svc.native.operands import Epilogue, NormWeights
from tetrad.worker_svc.native.program import PackedTokens
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.structures import Heads, KvType
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.native.weights import NativeMatrix, pack_fixed, pack_float, pack_split

_TOKENS_AT_ONCE = 512
"""Number of tokens in a group of whole prompts that run at once: their buffers fit the processor's caches, which saves 3 % of a
step of 2,048 tokens."""


@dataclass(frozen=True, slots=True)
class _Buffers:
    hidden: int
    normed: int  # used only if norms precede the branches
    heads: int  # q, k, v
    attended: int
    inner: int


class NativeEncoder:
    """A loaded encoder; see PackedEncoder.

    Args:
        config: the encoder's description.
        weights: the encoder's tensors; each is read once.
        team: the threads that run the program.
        takes_fixed: whether products may run in fixed point.
    """

    def __init__(self, config: EncoderConfig, weights: EncoderWeights, team: Team, *, takes_fixed: bool = False) -> None:
        self.config, self.vocab_size = config, config.vocab_size
        self._team, self._weights = team, weights
        self._pack = _packing(team, takes_fixed=takes_fixed)
        self._embeddings = Embeddings(config, weights)
        program = ProgramBuilder(team)
        hidden, size = config.hidden_size, config.intermediate_size
        normed = program.buffer(hidden) if config.norms_first else 0
        self._hidden = program.buffer(hidden)
        buffers = _Buffers(self._hidden, normed, program.buffer(3 * hidden), program.buffer(hidden), program.buffer(size))
        self._norm(program, weights.names.embedding_norm, self._hidden, self._hidden)
        turns = {rope: self._turns(rope) for rope in config.ropes}
        for index in range(config.num_layers):
            self._write_attention(program, buffers, index, turns)
            self._write_mlp(program, buffers, index)
        if config.norms_first:
            self._norm(program, weights.names.final_norm, self._hidden, self._hidden)
        self._program = program.build("encoder", self._heads())
        del self._weights  # it keeps the model's files open

    def forward(self, prompts: PackedPrompts) -> torch.Tensor:
        """Return the last layer's hidden states [T, hidden_size]."""
        hidden, positions = self._embeddings.of(prompts), prompts.positions
        for first, last in _groups(prompts.lengths):
            lengths = np.ascontiguousarray(prompts.lengths[first:last])
            begin, starts = int(prompts.starts[first]), np.cumsum(lengths) - lengths
            part = hidden[begin : begin + int(lengths.sum())]
            tokens = PackedTokens(np.ascontiguousarray(positions[begin : begin + len(part)]), starts, lengths)
            self._program.run(len(part), packed=tokens, given={self._hidden: part})
        return hidden

    def _write_attention(self, program: ProgramBuilder, buffers: _Buffers, index: int, turns: dict[Rope, torch.Tensor]) -> None:
        config, names, weights = self.config, self._weights.names, self._weights
        hidden, name = config.hidden_size, names.attention_norm.format(index)
        source = buffers.hidden
        if config.norms_first and (index or config.has_first_norm):
            source = buffers.normed
            self._norm(program, name, buffers.hidden, source)
        qkv = weights.joined("qkv", (names.query, names.key, names.value), index, hidden, hidden)
        self._linear(program, qkv, source, buffers.heads)
        if config.ropes:
            program.rotate_packed(turns[config.ropes[index]], buffers.heads)
        program.attend_packed(buffers.heads, buffers.attended, window=config.windows[index] if config.windows else 0)
        out = weights.matrix("attention_out", names.attention_out.format(index), hidden, hidden)
        self._linear(program, out, buffers.attended, buffers.hidden, epilogue=Epilogue.ADD)
        if not config.norms_first:
            self._norm(program, name, buffers.hidden, buffers.hidden)

    def _write_mlp(self, program: ProgramBuilder, buffers: _Buffers, index: int) -> None:
        config, names, weights = self.config, self._weights.names, self._weights
        hidden, size, name = config.hidden_size, config.intermediate_size, names.output_norm.format(index)
        source = buffers.hidden
        if config.norms_first:
            source = buffers.normed
            self._norm(program, name, buffers.hidden, source)
        parts = (names.gate, names.up) if config.is_gated else (names.up,)
        epilogue = Epilogue.GATE if config.is_gated else Epilogue.ACTIVATE
        gate_up = weights.joined("gate_up", parts, index, size, hidden)
        self._linear(program, gate_up, source, buffers.inner, epilogue=epilogue, activation=config.activation)
        down = weights.matrix("down", names.down.format(index), hidden, size)
        self._linear(program, down, buffers.inner, buffers.hidden, epilogue=Epilogue.ADD)
        if not config.norms_first:
            self._norm(program, name, buffers.hidden, buffers.hidden)

    def _linear(
        self,
        program: ProgramBuilder,
        parameters: Parameters,
        source: int,
        target: int,
        *,
        epilogue: Epilogue = Epilogue.STORE,
        activation: Activation = "silu",
    ) -> None:
        weight, bias = parameters
        matrix: NativeMatrix = self._pack(self._team, weight, paired=epilogue is Epilogue.GATE)
        program.linear(matrix, bias, source, target, epilogue=epilogue, activation=activation)

    def _norm(self, program: ProgramBuilder, name: str, source: int, target: int) -> None:
        weight, bias = self._weights.norm(name)
        program.norm(NormWeights(weight, self.config.norm_eps, bias, is_centered=True), source, target)

    def _turns(self, rope: Rope) -> torch.Tensor:
        return rotary_of(rope.dim, rope.theta, rope.scaling).cos_sin(torch.arange(self.config.max_position_embeddings))

    def _heads(self) -> Heads:
        config = self.config
        return Heads(
            num_heads=config.num_heads,
            num_kv_heads=config.num_heads,
            head_dim=config.head_dim,
            kv_type=KvType.FLOAT32,
            rotary_dim=config.ropes[0].dim if config.ropes else 0,
        )


def _packing(team: Team, *, takes_fixed: bool) -> Callable[..., NativeMatrix]:
    """Return the packing function for the fastest products that the processor supports."""
    if team.has_split_products:
        return pack_split
    return pack_fixed if takes_fixed and team.has_fixed_products else pack_float


def _groups(lengths: Ints) -> Iterator[tuple[int, int]]:
    """Yield index ranges (first, end) of prompts with about _TOKENS_AT_ONCE tokens in total."""
    groups = np.cumsum(lengths) // _TOKENS_AT_ONCE
    edges = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(lengths)]
    yield from pairwise(edges)
