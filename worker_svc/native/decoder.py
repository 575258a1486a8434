"""Native decoder: runs the computation of models/decoder.py with the native kernels, as one program.

The code follows the forward pass. Weights can stay quantized as in their file. Float32 results of a request are bit for bit the
same, alone or together with other requests in a step.
"""

from functools import partial
from typing import NamedTuple

import torch

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.core.plan import Floats, Ints
from tetrad.worker_svc.layers.argmax import argmax
from tetrad.worker_svc.layers.logits import scaled_and_capped
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.traits import Trait, traits_of
from tetrad.worker_svc.native.branch_writer import read_norm
from tetrad.worker_svc.native.layer_program import LayerProgram, NativePages
from tetrad.worker_svc.native.loras import NativeLoras, NoNativeLoras, ProgramSites
from tetrad.worker_svc.native.operands import Epilogue, NormWeights
from tetrad.worker_svc.native.parameters import MatrixLoader, NativeParameters
from tetrad.worker_svc.native.program import Adapters, Program
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.program_sums import WHOLE, Share
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.native.weights import NativeMatrix

MAX_HEAD_DIM = 256
"""Largest size of a head; the same value as in kv_pages.h."""
TRAITS = frozenset(
    {
        Trait.ACTIVATION,
        Trait.EMBEDDING_NORM,
        Trait.EMBEDDINGS,
        Trait.EXPERTS,
        Trait.HEAD_NORMS,
        Trait.LAYER_NORM,
        Trait.LOGITS,
        Trait.NORM_PLACES,
        Trait.PARALLEL,
        Trait.QKV_BOUND,
        Trait.QUERY_SCALING,
        Trait.RESIDUALS,
        Trait.ROPES,
        Trait.SCALE,
        Trait.SINKS,
        Trait.SLOPES,
        Trait.SOFTCAP,
        Trait.UNGATED,
        Trait.WHOLE_HEAD_NORMS,
        Trait.WINDOWS,
    }
)
"""The traits beyond Llama that this program supports."""


class _Head(NamedTuple):
    """A program that runs after the last layer, its input buffer and its output buffer."""

    program: Program
    hidden: int
    output: int


class NativeDecoder:
    """A decoder that has no traits except TRAITS; see models.interface.Model.

    Args:
        config: the model's description.
        weights: loads norms, biases and tables.
        matrices: loads matrices.
        team: the threads that run the program.
        kv_cache_dtype: float32, float16 or int8, which is Q8_0: 8 bits, and a scale for 32 dimensions.
        loras: the adapters that may change products.
        share: the part of the model that `config` describes; a part's outputs are those of its rows of the vocabulary.

    Attributes:
        expert_tokens: for each layer with experts, [experts]: number of tokens that each expert has computed.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightLoader,
        matrices: MatrixLoader,
        team: Team,
        *,
        kv_cache_dtype: torch.dtype = torch.float32,
        loras: NativeLoras | NoNativeLoras = NoNativeLoras(),  # noqa: B008 - it has no state
        share: Share = WHOLE,
    ) -> None:
        self.config, self._loras, self.embedding_size = config, loras, config.embedding_size
        parameters = NativeParameters(weights, matrices)
        embedding = parameters.product("model.embed_tokens", config.vocab_size, config.hidden_size)
        self._layers = LayerProgram(config, parameters, team, kv_cache_dtype, loras, embedding, share)
        self.kv_cache_spec, self.attention, self.forward = self._layers.kv_cache_spec, NativePages(), self._layers.forward
        self.expert_tokens = self._layers.expert_tokens
        is_tied = config.tie_word_embeddings or not parameters.has("lm_head.weight")
        matrix = embedding if is_tied else parameters.product("lm_head", config.vocab_size, config.hidden_size)
        norm, bias = read_norm(config, parameters, "model.norm"), parameters.bias(("lm_head", config.vocab_size))
        write_head = partial(self._write_head, team, norm, matrix, bias)
        self._logits = write_head("logits", Epilogue.STORE, config.vocab_size)
        # Scaling and capping round, so two different products may become equal logits. Then the largest product may not be the
        # first of the largest logits.
        changes_logits = Trait.LOGITS in traits_of(config)
        self._argmax = None if changes_logits else write_head("argmax", Epilogue.TOP, 2 * matrix.num_spans)
        self._normed = self._write_norm(team, norm)
        self.weights_size_bytes = parameters.size_bytes

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return hidden states [N, hidden] after the last norm; the result is valid until the next call."""
        return _run_head(self._normed, hidden).result(self._normed.output, len(hidden))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, vocab_size] float32; valid until the next call, and the caller may change them."""
        logits = _run_head(self._logits, hidden, self._loras.selected).result(self._logits.output, len(hidden))
        return scaled_and_capped(logits, self.config)

    def argmax(self, hidden: torch.Tensor) -> tuple[Ints, Floats]:
        """Return the token ids [N] of the largest logits, and these logits [N]; stores no other logits if possible."""
        if self._argmax is None:
            return argmax(self.logits(hidden))
        return _run_head(self._argmax, hidden, self._loras.selected).top(self._argmax.output, len(hidden))

    def _write_head(
        self,
        team: Team,
        norm: NormWeights,
        matrix: NativeMatrix,
        bias: torch.Tensor | None,
        name: str,
        epilogue: Epilogue,
        width: int,
    ) -> _Head:
        program, size, is_prepared = ProgramBuilder(team), self.config.hidden_size, not matrix.takes_floats
        hidden, normed, output = program.buffer(size), program.buffer(size), program.buffer(width)
        program.norm(norm, hidden, normed, reader=matrix if is_prepared else None)
        adapted = ProgramSites(self._loras, program).add([("lm_head", self.config.vocab_size)], size)
        program.linear(matrix, bias, normed, output, epilogue=epilogue, is_prepared=is_prepared, adapted=adapted)
        return _Head(program.build(name, self._layers.heads), hidden, output)

    def _write_norm(self, team: Team, norm: NormWeights) -> _Head:
        program, size = ProgramBuilder(team), self.config.hidden_size
        hidden, normed = program.buffer(size), program.buffer(size)
        program.norm(norm, hidden, normed)
        return _Head(program.build("normed", self._layers.heads), hidden, normed)


def _run_head(head: _Head, hidden: torch.Tensor, adapters: Adapters | None = None) -> Program:
    head.program.run(len(hidden), given={head.hidden: hidden.contiguous()}, adapters=adapters)
    return head.program


class NativeStage:
    """A stage of a pipeline after the first one; see models.interface.StageModel.

    Args:
        config: the description of the stage.
        weights, matrices, team, kv_cache_dtype, loras, share: see NativeDecoder.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightLoader,
        matrices: MatrixLoader,
        team: Team,
        kv_cache_dtype: torch.dtype,
        loras: NativeLoras | NoNativeLoras,
        share: Share = WHOLE,
    ) -> None:
        parameters = NativeParameters(weights, matrices)
        self.config, self.hidden_size = config, config.hidden_size
        layers = LayerProgram(config, parameters, team, kv_cache_dtype, loras, share=share)
        self.kv_cache_spec, self.attention, self.add_to = layers.kv_cache_spec, NativePages(), layers.add_to
        self.weights_size_bytes = parameters.size_bytes
