"""LayerWriter: writes the layers of a decoder into a native program, like models/layers.py builds them in torch.

Products with the same input and the same format are fused. A product reads rows that the norm before it has quantized, or
quantizes them itself.
"""

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.model_facts.config import ModelConfig, Rope
from tetrad.worker_svc.native.branch_writer import BranchWriter, Input, LayerBuffers
from tetrad.worker_svc.native.experts_writer import ExpertBuffers, ExpertsWriter
from tetrad.worker_svc.native.loras import ProgramSites
from tetrad.worker_svc.native.mlp_writer import MlpWriter
from tetrad.worker_svc.native.operands import LayerPages, QueryKeyNorms
from tetrad.worker_svc.native.parameters import NativeParameters
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.structures import HeadNorms

_HEAD_NORMS = {"head": HeadNorms.EACH_HEAD, "whole": HeadNorms.ALL_HEADS}


class LayerWriter:
    """Writes one layer at a time, so that packing needs memory for at most one layer twice.

    Args:
        config: the model's description.
        parameters: the model's weights.
        program: the program that is written.
        buffers: the program's buffers.
        sites: the places where adapters change products.
        is_summed: whether each rank has a part of the layers, and outputs are summed over the ranks.

    Attributes:
        expert_tokens: for each layer with experts, [experts]: number of tokens that each expert has computed.
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
        self._config, self._parameters, self._program, self._buffers = config, parameters, program, buffers
        self._sites = sites
        self._branches = BranchWriter(config, parameters, program, buffers, sites, is_summed=is_summed)
        has_experts = any(layer.experts for layer in config.layers)
        self._expert_buffers = ExpertBuffers.of(config, program, sites) if has_experts else None
        self._ropes = [rope for rope in config.ropes if rope]
        self.expert_tokens: list[Ints] = []

    def write(self, layer: int, pages: LayerPages) -> None:
        """Write a layer whose keys and values are in `pages`."""
        config, buffers, prefix = self._config, self._buffers, f"model.layers.{layer}"
        mlp, write_input = self._mlp(layer), self._branches.write_input
        if not config.is_parallel:
            self._write_attention(layer, pages)
            mlp.write(write_input(f"{prefix}.post_attention_layernorm", buffers.normed, mlp.matrices))
        elif config.is_norm_shared:
            self._write_attention(layer, pages)
            mlp.write(Input(buffers.normed))
        else:  # the MLP's input is computed before attention is added to the residual stream
            after_norm = write_input(f"{prefix}.post_attention_layernorm", buffers.mlp_input, [])
            self._write_attention(layer, pages)
            mlp.write(after_norm)

    def _mlp(self, layer: int) -> MlpWriter | ExpertsWriter:
        facts, prefix = self._config.layers[layer], f"model.layers.{layer}.mlp"
        if facts.experts is None:
            return MlpWriter(self._branches, prefix, facts.intermediate_size)
        assert self._expert_buffers is not None
        counts = np.zeros(facts.experts.num_experts, np.int64)
        self.expert_tokens.append(counts)
        return ExpertsWriter(self._branches, self._expert_buffers, prefix, facts.experts, counts)

    def _write_attention(self, layer: int, pages: LayerPages) -> None:
        config, buffers, prefix = self._config, self._buffers, f"model.layers.{layer}.self_attn"
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        names = [(f"{prefix}.q_proj", queries), (f"{prefix}.k_proj", keys), (f"{prefix}.v_proj", keys)]
        matrices = self._parameters.products(*names, columns=config.hidden_size)
        source = self._branches.write_input(f"model.layers.{layer}.input_layernorm", buffers.normed, matrices)
        column, bias = 0, self._parameters.bias(*names)
        for index, matrix in enumerate(matrices):
            part = None if bias is None else bias[column : column + matrix.num_outputs]
            its_names = names if len(matrices) == 1 else names[index : index + 1]
            self._program.linear(
                matrix,
                part,
                source.buffer,
                buffers.heads,
                column=column,
                is_prepared=source.is_prepared,
                adapted=self._sites.add(its_names, config.hidden_size),
            )
            column += matrix.num_outputs
        rope, scaling = config.layers[layer].rope, config.layers[layer].query_scaling
        norms, turns = self._query_key_norms(prefix), self._table_of(rope)
        self._program.rotate(pages, buffers.heads, norms, turns=turns, scaling=scaling, bound=config.qkv_bound)
        sinks = self._parameters.vector(f"{prefix}.sinks", config.num_heads) if config.has_sinks else None
        slopes = torch.tensor(config.slopes) if config.slopes else None
        self._program.attend(pages, buffers.heads, buffers.attended, sinks=sinks, slopes=slopes)
        self._branches.write_output(f"{prefix}.o_proj", f"{prefix}.output_norm", buffers.attended, queries)

    def _query_key_norms(self, prefix: str) -> QueryKeyNorms | None:
        config = self._config
        if config.head_norms == "none":
            return None
        kind = _HEAD_NORMS[config.head_norms]
        sizes = (config.num_heads, config.num_kv_heads) if kind is HeadNorms.ALL_HEADS else (1, 1)
        query, key = (
            self._parameters.vector(f"{prefix}.{name}.weight", config.head_dim * size)
            for name, size in zip(("q_norm", "k_norm"), sizes, strict=True)
        )
        return QueryKeyNorms(kind, query, key, config.norm_eps)

    def _table_of(self, rope: Rope | None) -> int | None:
        return self._ropes.index(rope) if rope else None
