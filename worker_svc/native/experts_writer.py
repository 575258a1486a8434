"""ExpertsWriter: writes the mixture of experts of a decoder layer into a native program.

The router's products are in float32. An expert's matrices are multiplied with all its tokens of a step at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.model_facts.config import Experts, ModelConfig
from tetrad.worker_svc.native.branch_writer import BranchWriter, Input
from tetrad.worker_svc.native.loras import ProgramSites
from tetrad.worker_svc.native.mlp_writer import MlpWriter
from tetrad.worker_svc.native.operands import Adapted, Epilogue, Shared
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.weights import NativeMatrix


@dataclass(frozen=True, slots=True)
class ExpertBuffers:
    """Numbers of the buffers that all layers with experts share.

    Attributes:
        scores: the router's scores of all experts.
        gated: the inputs of the experts' last products.
        outputs: the outputs of the experts.
        shared_gated, shared: the input and the output of the shared expert's last product.
        shared_gate: the score of the shared expert's gate.
        shrunk: the experts' inputs times the adapters' A.
    """

    scores: int
    gated: int
    outputs: int
    shared_gated: int
    shared: int
    shared_gate: int
    shrunk: int

    @classmethod
    def of(cls, config: ModelConfig, program: ProgramBuilder, sites: ProgramSites) -> "ExpertBuffers":
        """Create the buffers for a model."""
        kinds = {layer.experts for layer in config.layers if layer.experts}
        return cls(
            scores=program.buffer(max(each.num_experts for each in kinds)),
            gated=program.buffer(max(each.num_chosen * each.intermediate_size for each in kinds)),
            outputs=program.buffer(max(each.num_chosen for each in kinds) * config.hidden_size),
            shared_gated=program.buffer(max(1, *(each.shared_size for each in kinds))),
            shared=program.buffer(config.hidden_size),
            shared_gate=program.buffer(1),
            shrunk=sites.buffer_of_pairs(program, max(each.num_chosen for each in kinds)),
        )


class ExpertsWriter:
    """Writes the experts of one layer.

    Args:
        branches: writes the branches of the program.
        buffers: the program's buffers for experts.
        prefix: prefix of the tensors' names.
        experts: the description of the layer's experts.
        counts: [experts], counters to which each run adds the number of tokens of each expert.
    """

    def __init__(self, branches: BranchWriter, buffers: ExpertBuffers, prefix: str, experts: Experts, counts: Ints) -> None:
        self._branches, self._buffers, self._prefix = branches, buffers, prefix
        self._experts, self._counts = experts, counts
        self._shared = MlpWriter(branches, f"{prefix}.shared_expert", experts.shared_size) if experts.shared_size else None
        parts = ("gate_proj", "up_proj") if branches.config.is_gated else ("up_proj",)
        self._inner = self._load(parts, experts.intermediate_size, branches.config.hidden_size)
        self._inner_biases = self._biases(parts, experts.intermediate_size)
        self._inner_adapted = self._adapted(parts, experts.intermediate_size, branches.config.hidden_size)

    @property
    def matrices(self) -> Sequence[NativeMatrix]:
        """The matrices that read the layer's input."""
        return [self._inner[0], *(self._shared.matrices if self._shared else ())]

    def write(self, source: Input) -> None:
        """Write the experts' computation on an input, and the addition of their output to the residual stream."""
        branches, buffers, experts, prefix = self._branches, self._buffers, self._experts, self._prefix
        program, parameters, config = branches.program, branches.parameters, branches.config
        hidden, number = config.hidden_size, experts.num_experts
        router = parameters.plain(f"{prefix}.router", number, hidden)
        # The buffer of scores may have more columns than this layer has experts; the router's product fills the first ones.
        program.linear(router, parameters.bias((f"{prefix}.router", number)), source.buffer, buffers.scores)
        name = f"{prefix}.router_correction"
        correction = parameters.vector(name, number) if parameters.has(name) else None
        routing = program.route(experts, correction, self._counts, buffers.scores)
        program.experts(
            routing,
            self._inner,
            self._inner_biases,
            source.buffer,
            buffers.gated,
            epilogue=Epilogue.GATE if config.is_gated else Epilogue.ACTIVATE,
            activation=config.activation,
            clamp=experts.clamp,
            is_prepared=source.is_prepared,
            adapted=self._inner_adapted,
        )
        shared = self._write_shared(source)  # before the quantized input is overwritten
        down = self._load(("down_proj",), hidden, experts.intermediate_size)
        biases = self._biases(("down_proj",), hidden)
        adapted = self._adapted(("down_proj",), hidden, experts.intermediate_size)
        program.experts(routing, down, biases, buffers.gated, buffers.outputs, is_by_place=True, adapted=adapted)
        if self._shared is not None:
            self._shared.write_down(buffers.shared_gated, buffers.shared)
        if branches.adds_at_once:
            program.mix(routing, buffers.outputs, branches.buffers.hidden, shared=shared, added=config.residual_multiplier)
            return
        program.mix(routing, buffers.outputs, branches.buffers.branch, shared=shared)
        branches.write_end(f"{prefix}.output_norm")

    def _write_shared(self, source: Input) -> Shared | None:
        """Write the shared expert's computation on the layer's input, without its last product."""
        branches, buffers = self._branches, self._buffers
        if self._shared is None:
            return None
        self._shared.write_inner(source, buffers.shared_gated)
        if not self._experts.has_shared_gate:
            return Shared(buffers.shared)
        gate = branches.parameters.plain(f"{self._prefix}.shared_expert_gate", 1, branches.config.hidden_size)
        branches.program.linear(gate, None, source.buffer, buffers.shared_gate)
        return Shared(buffers.shared, buffers.shared_gate)

    def _names(self, parts: Sequence[str]) -> Iterator[list[str]]:
        for expert in range(self._experts.num_experts):
            yield [f"{self._prefix}.experts.{expert}.{part}" for part in parts]

    def _load(self, parts: Sequence[str], rows: int, columns: int) -> list[NativeMatrix]:
        """Return the matrices of all experts, each of one part or of two paired parts."""
        parameters = self._branches.parameters
        if len(parts) == 1:
            loaded = [parameters.product(name, rows, columns) for [name] in self._names(parts)]
        else:
            loaded = [parameters.pair(gate, up, rows, columns) for gate, up in self._names(parts)]
        if len({matrix.takes_floats for matrix in loaded}) > 1:
            raise ModelError(
                f"Of {self._prefix}.experts.*.{parts[0]}.weight some are quantized and some are not; it is all or none."
            )
        return loaded

    def _adapted(self, parts: Sequence[str], rows: int, columns: int) -> Adapted:
        its_parts = [[(name, rows) for name in names] for names in self._names(parts)]
        return self._branches.sites.add_experts(its_parts, columns, self._buffers.shrunk, is_paired=len(parts) > 1)

    def _biases(self, parts: Sequence[str], rows: int) -> torch.Tensor | None:
        found = [self._branches.parameters.bias(*((name, rows) for name in names)) for names in self._names(parts)]
        filled = [torch.zeros(len(parts) * rows) if bias is None else bias for bias in found]
        return None if all(bias is None for bias in found) else torch.stack(filled)
