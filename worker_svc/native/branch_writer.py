"""BranchWriter: writes the start and the end of a layer's branches: the norm of the residual stream, and the addition to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.native.loras import ProgramSites
from tetrad.worker_svc.native.operands import Epilogue, NormWeights
from tetrad.worker_svc.native.parameters import NativeParameters
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.weights import NativeMatrix


@dataclass(frozen=True, slots=True)
class LayerBuffers:
    """Numbers of the buffers that all layers share.

    Attributes:
        hidden: the residual stream.
        normed: the input of attention.
        heads: queries, keys and values.
        attended: the output of attention before its last product.
        mlp_input: the MLP's input: `normed`, unless attention and MLP read the same residual stream through two norms.
        gated: the input of the MLP's last product.
        branch: the output of attention or MLP if it is summed over ranks, or normed, before its addition; otherwise `hidden`.
    """

    hidden: int
    normed: int
    heads: int
    attended: int
    mlp_input: int
    gated: int
    branch: int

    @classmethod
    def of(cls, config: ModelConfig, program: ProgramBuilder, *, is_summed: bool = False) -> "LayerBuffers":
        """Create the buffers of a model; `is_summed`: the layers' outputs are summed over ranks."""
        hidden, normed = program.buffer(config.hidden_size), program.buffer(config.hidden_size)
        has_two_inputs = config.is_parallel and not config.is_norm_shared
        return cls(
            hidden=hidden,
            normed=normed,
            heads=program.buffer((config.num_heads + 2 * config.num_kv_heads) * config.head_dim),
            attended=program.buffer(config.num_heads * config.head_dim),
            mlp_input=program.buffer(config.hidden_size) if has_two_inputs else normed,
            gated=program.buffer(max((layer.intermediate_size for layer in config.layers if not layer.experts), default=1)),
            branch=program.buffer(config.hidden_size) if config.has_norms_after or is_summed else hidden,
        )


class Input(NamedTuple):
    """The input of a product: a buffer, and whether a norm has converted its rows to the form that the product reads."""

    buffer: int
    is_prepared: bool = False


class BranchWriter:
    """Writes the start and the end of branches into one program.

    Args:
        config: the model's description.
        parameters: the model's weights.
        program: the program that is written.
        buffers: the program's buffers.
        sites: the places where adapters change products.
        is_summed: whether each rank has a part of the layers, and outputs are summed over the ranks.

    Attributes:
        adds_at_once: whether a branch's last product adds directly to the residual stream.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: NativeParameters,
        program: ProgramBuilder,
        buffers: LayerBuffers,
        sites: ProgramSites,
        *,
        is_summed: bool = False,
    ) -> None:
        self.config, self.parameters, self.program, self.buffers = config, parameters, program, buffers
        self.sites, self._is_summed = sites, is_summed
        self.adds_at_once = not config.has_norms_after and not is_summed

    def write_input(self, norm: str, target: int, matrices: Sequence[NativeMatrix]) -> Input:
        """Write the norm of the residual stream, if the model has a norm there; return the input of `matrices`."""
        if not self.config.has_norms_before:
            return Input(self.buffers.hidden)
        reader = next((matrix for matrix in matrices if not matrix.takes_floats), None)
        self.program.norm(read_norm(self.config, self.parameters, norm), self.buffers.hidden, target, reader=reader)
        return Input(target, reader is not None)

    def write_output(self, name: str, norm: str, source: int, columns: int) -> None:
        """Write the product that ends a branch, and its addition to the residual stream; see write_end."""
        config, buffers = self.config, self.buffers
        matrix = self.parameters.product(name, config.hidden_size, columns)
        bias = self.parameters.bias((name, config.hidden_size))
        adapted = self.sites.add([(name, config.hidden_size)], columns)
        multiplier = config.residual_multiplier
        if self.adds_at_once:
            self.program.linear(matrix, bias, source, buffers.hidden, epilogue=Epilogue.ADD, scale=multiplier, adapted=adapted)
            return
        self.program.linear(matrix, bias, source, buffers.branch, adapted=adapted)
        self.write_end(norm)

    def write_end(self, norm: str) -> None:
        """Write the sum of a branch's output over the ranks, its norm if the model has one, and its addition."""
        config, buffers, multiplier = self.config, self.buffers, self.config.residual_multiplier
        if not config.has_norms_after:
            self.program.sum(buffers.branch, buffers.hidden, added=multiplier)
            return
        if self._is_summed:
            self.program.sum(buffers.branch, buffers.branch)
        weights = read_norm(config, self.parameters, norm)
        self.program.norm(weights, buffers.branch, buffers.hidden, added=multiplier)


def read_norm(config: ModelConfig, parameters: NativeParameters, name: str) -> NormWeights:
    """Return the weights of a norm over hidden states, of the model's kind."""
    is_centered, size = config.norm == "layer", config.hidden_size
    bias = parameters.bias((name, size)) if is_centered else None
    return NormWeights(parameters.vector(f"{name}.weight", size), config.norm_eps, bias, is_centered)
