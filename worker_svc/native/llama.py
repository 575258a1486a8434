"""The llama family over the native kernels: the computation of models/llama.py as one program.

Reads as the forward pass. Weights keep the quanta of their file if they are asked to; products that share their input and their
format are fused. Float32 results do not depend on what else is in a step, to the last bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import Floats, Ints
from tetrad.worker_svc.core.step_inputs import StepInputs
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec
from tetrad.worker_svc.layers.rotary import TurnTable, rotary_of
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.native.program import Epilogue, Pages, Program, ProgramBuilder, Tokens
from tetrad.worker_svc.native.structures import Heads, KvType
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.native.weights import NativeMatrix

MAX_HEAD_DIM = 256
"""As kv_pages.h has it."""
_SCALED = 32
"""Dimensions that share a scale, as kv_pages.h has it."""
_SCALE_BYTES = 2
_KV_TYPES = {torch.float32: KvType.FLOAT32, torch.float16: KvType.FLOAT16, torch.int8: KvType.INT8}


class MatrixLoader(Protocol):
    """Packs matrices out of a model's files."""

    def load(self, names: Sequence[tuple[str, int]], columns: int, *, paired: bool = False) -> list[NativeMatrix]:
        """Return the product of matrices [rows, columns] over one input: one matrix, or several if their formats differ."""


@dataclass(frozen=True, slots=True)
class _Buffers:
    hidden: int  # the residual stream
    normed: int
    heads: int  # q, k, v
    attended: int
    gated: int


class _Head(NamedTuple):
    """The program behind the last layer, and the buffers that it reads and fills."""

    program: Program
    hidden: int
    output: int


class NativePages:
    """AttentionBackend's half that is made once a step; the other half is an operation of the program."""

    def build_metadata(self, inputs: StepInputs, batch: InputBatch) -> Pages:
        """Return where the step's sequences have their keys and values."""
        num_positions = int((inputs.num_computed + inputs.num_scheduled).max())
        num_pages = -(-num_positions // batch.block_size)
        return Pages(
            slots=np.ascontiguousarray(inputs.slot_mapping),
            tables=np.ascontiguousarray(batch.block_tables[inputs.slots, :num_pages]),
            first_tokens=np.ascontiguousarray(inputs.first_token),
            num_computed=np.ascontiguousarray(inputs.num_computed),
            num_scheduled=np.ascontiguousarray(inputs.num_scheduled),
            block_size=batch.block_size,
            num_positions=num_positions,
        )


class NativeLlama:
    """A decoder of the llama family; see registry.Model.

    Args:
        config: of the model.
        weights: for vectors: norms and biases.
        matrices: for everything else.
        team: that runs it.
        kv_cache_dtype: float32, float16 or int8, which is Q8_0: 8 bits, and a scale for 32 dimensions.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightLoader,
        matrices: MatrixLoader,
        team: Team,
        *,
        kv_cache_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config = config
        scales_bytes = -(-config.head_dim // _SCALED) * _SCALE_BYTES if kv_cache_dtype == torch.int8 else 0
        self.kv_cache_spec = KvCacheSpec(
            config.num_layers, config.num_kv_heads, config.head_dim, kv_cache_dtype, is_by_block=True, scales_bytes=scales_bytes
        )
        self.attention = NativePages()
        self.weights_size_bytes = 0
        self._weights, self._matrices, self._team = weights, matrices, team
        self._turns = TurnTable(rotary_of(config.rotary_dim, config.rope_theta, config.rope_scaling))
        vocabulary = ("model.embed_tokens.weight", config.vocab_size)
        [embedding] = self._load(vocabulary, columns=config.hidden_size)
        self._layers, self._hidden = self._write_layers(embedding)
        is_tied = config.tie_word_embeddings or not weights.has("lm_head.weight")
        head = embedding if is_tied else self._load(("lm_head.weight", config.vocab_size), columns=config.hidden_size)[0]
        norm = self._norm("model.norm")
        self._logits = self._write_head("logits", norm, head, Epilogue.STORE, config.vocab_size)
        self._argmax = self._write_head("argmax", norm, head, Epilogue.TOP, 2 * head.num_spans)
        del self._weights, self._matrices  # they hold the model's files open

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, caches: list[torch.Tensor], metadata: Any
    ) -> torch.Tensor:
        """Return the residual stream [T, hidden] after the last layer; valid until the next step."""
        turns = self._turns.up_to(int(metadata.num_positions))
        tokens = Tokens(token_ids.contiguous().numpy(), positions.contiguous().numpy(), turns, caches[0])
        self._layers.run(len(token_ids), tokens, metadata)
        return self._layers.result(self._hidden, len(token_ids))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [N, vocab_size] float32; valid, and free to be written, until the next call."""
        return self._run_head(self._logits, hidden).result(self._logits.output, len(hidden))

    def argmax(self, hidden: torch.Tensor) -> tuple[Ints, Floats]:
        """Return the ids [N] of the largest logits, and those [N], without writing the others down."""
        return self._run_head(self._argmax, hidden).top(self._argmax.output, len(hidden))

    def _run_head(self, head: _Head, hidden: torch.Tensor) -> Program:
        head.program.run(len(hidden), given={head.hidden: hidden.contiguous()})
        return head.program

    def _write_layers(self, embedding: NativeMatrix) -> tuple[Program, int]:
        config, program = self.config, ProgramBuilder(self._team)
        heads_width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        buffers = _Buffers(
            hidden=program.buffer(config.hidden_size),
            normed=program.buffer(config.hidden_size),
            heads=program.buffer(heads_width),
            attended=program.buffer(config.num_heads * config.head_dim),
            gated=program.buffer(config.intermediate_size),
        )
        program.embed(embedding, buffers.hidden)
        for layer in range(config.num_layers):
            self._write_attention(program, buffers, layer)
            self._write_mlp(program, buffers, f"model.layers.{layer}")
        return program.build("layers", self._heads()), buffers.hidden

    def _write_attention(self, program: ProgramBuilder, buffers: _Buffers, layer: int) -> None:
        config, prefix = self.config, f"model.layers.{layer}.self_attn"
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        names = [(f"{prefix}.q_proj", queries), (f"{prefix}.k_proj", keys), (f"{prefix}.v_proj", keys)]
        fused = self._load(*((f"{name}.weight", size) for name, size in names), columns=config.hidden_size)
        is_quantized = any(matrix.is_quantized for matrix in fused)
        norm = self._norm(f"model.layers.{layer}.input_layernorm")
        program.norm(norm, config.rms_norm_eps, buffers.hidden, buffers.normed, quantize=is_quantized)
        column, bias = 0, self._bias(names)
        for matrix in fused:
            part = None if bias is None else bias[column : column + matrix.num_outputs]
            program.linear(matrix, part, buffers.normed, buffers.heads, column=column, source_is_quantized=is_quantized)
            column += matrix.num_outputs
        program.rotate(layer, buffers.heads, self._query_key_norms(prefix), config.rms_norm_eps)
        program.attend(layer, buffers.heads, buffers.attended)
        [output] = self._load((f"{prefix}.o_proj.weight", config.hidden_size), columns=queries)
        bias = self._bias([(f"{prefix}.o_proj", config.hidden_size)])
        program.linear(output, bias, buffers.attended, buffers.hidden, epilogue=Epilogue.ADD)

    def _write_mlp(self, program: ProgramBuilder, buffers: _Buffers, prefix: str) -> None:
        config, size = self.config, self.config.intermediate_size
        names = [(f"{prefix}.mlp.gate_proj", size), (f"{prefix}.mlp.up_proj", size)]
        [gate_up] = self._matrices.load([(f"{name}.weight", rows) for name, rows in names], config.hidden_size, paired=True)
        [down] = self._load((f"{prefix}.mlp.down_proj.weight", config.hidden_size), columns=size)
        self.weights_size_bytes += gate_up.size_bytes
        norm = self._norm(f"{prefix}.post_attention_layernorm")
        program.norm(norm, config.rms_norm_eps, buffers.hidden, buffers.normed, quantize=gate_up.is_quantized)
        program.linear(
            gate_up,
            self._bias(names),
            buffers.normed,
            buffers.gated,
            epilogue=Epilogue.GATE,
            source_is_quantized=gate_up.is_quantized,
        )
        bias = self._bias([(f"{prefix}.mlp.down_proj", config.hidden_size)])
        program.linear(down, bias, buffers.gated, buffers.hidden, epilogue=Epilogue.ADD)

    def _write_head(self, name: str, norm: torch.Tensor, matrix: NativeMatrix, epilogue: Epilogue, width: int) -> _Head:
        config, program = self.config, ProgramBuilder(self._team)
        hidden, normed = program.buffer(config.hidden_size), program.buffer(config.hidden_size)
        output = program.buffer(width)
        program.norm(norm, config.rms_norm_eps, hidden, normed, quantize=matrix.is_quantized)
        program.linear(matrix, None, normed, output, epilogue=epilogue, source_is_quantized=matrix.is_quantized)
        return _Head(program.build(name, self._heads()), hidden, output)

    def _heads(self) -> Heads:
        config = self.config
        return Heads(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            window=config.sliding_window or 0,
            kv_type=_KV_TYPES[self.kv_cache_spec.dtype],
            rotary_dim=config.rotary_dim,
        )

    def _load(self, *names: tuple[str, int], columns: int) -> list[NativeMatrix]:
        found = self._matrices.load(names, columns)
        self.weights_size_bytes += sum(matrix.size_bytes for matrix in found)
        return found

    def _norm(self, name: str) -> torch.Tensor:
        return self._weights.get(f"{name}.weight", (self.config.hidden_size,))

    def _query_key_norms(self, prefix: str) -> tuple[torch.Tensor, torch.Tensor] | None:
        if not self._weights.has(f"{prefix}.q_norm.weight"):
            return None
        size = (self.config.head_dim,)
        return self._weights.get(f"{prefix}.q_norm.weight", size), self._weights.get(f"{prefix}.k_norm.weight", size)

    def _bias(self, names: Sequence[tuple[str, int]]) -> torch.Tensor | None:
        """Return the biases of fused products side by side, zeros where there is none; None if there is none at all."""
        if not any(self._weights.has(f"{name}.bias") for name, _ in names):
            return None
        parts = [
            self._weights.get(f"{name}.bias", (size,)) if self._weights.has(f"{name}.bias") else torch.zeros(size)
            for name, size in names
        ]
        return torch.cat(parts)
