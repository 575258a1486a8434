"""Layer program: runs the layers of a decoder, or of one of its stages, with the native kernels.

Float32 results of a request are bit for bit the same, alone or together with other requests in a step.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.attention.interface import Tables
from tetrad.worker_svc.core.plan import Floats, GivenRows, Ints
from tetrad.worker_svc.core.step_inputs import StepInputs
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec
from tetrad.worker_svc.kv_cache.layer_groups import group_of_layers, groups_of
from tetrad.worker_svc.layers.rotary import TurnTable, rotary_of
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.native.branch_writer import LayerBuffers, read_norm
from tetrad.worker_svc.native.layer_writer import LayerWriter
from tetrad.worker_svc.native.loras import NativeLoras, NoNativeLoras, ProgramSites
from tetrad.worker_svc.native.operands import LayerPages
from tetrad.worker_svc.native.parameters import NativeParameters
from tetrad.worker_svc.native.program import Pages, Tokens
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.program_sums import WHOLE, Share
from tetrad.worker_svc.native.structures import Heads, KvType
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.native.weights import NativeMatrix

_SCALED = 32
"""Number of dimensions that share a scale; the same value as in kv_pages.h."""
_SCALE_BYTES = 2
_KV_TYPES = {torch.float32: KvType.FLOAT32, torch.float16: KvType.FLOAT16, torch.int8: KvType.INT8}


class NativePages:
    """The MetadataBuilder of programs with attention operations."""

    def build_metadata(self, inputs: StepInputs, batch: Tables) -> Pages:
        """Return the places of the keys and values of the step's sequences."""
        num_positions = int((inputs.num_computed + inputs.num_scheduled).max())
        num_pages = -(-num_positions // batch.block_size)
        return Pages(
            slots=np.ascontiguousarray(inputs.slot_mappings),
            tables=np.ascontiguousarray(batch.block_tables[:, inputs.slots, :num_pages]),
            first_tokens=np.ascontiguousarray(inputs.first_token),
            num_computed=np.ascontiguousarray(inputs.num_computed),
            num_scheduled=np.ascontiguousarray(inputs.num_scheduled),
            block_size=batch.block_size,
            num_positions=num_positions,
            axes=inputs.axes,
            ends=inputs.ends,
        )


class LayerProgram:
    """The program of a decoder's layers; it keeps no state between steps.

    Args:
        config: the description of the layers.
        parameters: the weights of the layers.
        team: the threads that run the program.
        kv_cache_dtype: float32, float16 or int8, which is Q8_0: 8 bits, and a scale for 32 dimensions.
        loras: the adapters that may change products.
        embedding: the table of embeddings that the program begins with; None: it begins with hidden states.
        share: the part of each layer and of the embeddings that this rank has.

    Attributes:
        expert_tokens: for each layer with experts, [experts]: number of tokens that each expert has computed.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: NativeParameters,
        team: Team,
        kv_cache_dtype: torch.dtype,
        loras: NativeLoras | NoNativeLoras,
        embedding: NativeMatrix | None = None,
        share: Share = WHOLE,
    ) -> None:
        self._config, self._loras, self._share = config, loras, share
        scales_bytes = -(-config.head_dim // _SCALED) * _SCALE_BYTES if kv_cache_dtype == torch.int8 else 0
        self.kv_cache_spec = KvCacheSpec(
            groups_of(config),
            config.num_kv_heads,
            config.head_dim,
            kv_cache_dtype,
            is_by_block=True,
            scales_bytes=scales_bytes,
        )
        self._turns = [TurnTable(rotary_of(rope.dim, rope.theta, rope.scaling, rope.axes)) for rope in config.ropes if rope]
        program, is_summed = ProgramBuilder(team, share.sums), not share.is_whole
        buffers = LayerBuffers.of(config, program, is_summed=is_summed)
        self._hidden = buffers.hidden
        if embedding is not None:
            self._write_embedding(program, parameters, embedding)
        sites, spec = ProgramSites(loras, program), self.kv_cache_spec
        writer = LayerWriter(config, parameters, program, buffers, sites, is_summed=is_summed)
        groups, first = group_of_layers(spec.groups), config.stage.first_layer if config.stage else 0
        for layer in range(config.num_layers):
            writer.write(layer, LayerPages(spec.places[layer], groups[layer], config.layer_windows[layer]))
            if first + layer < config.num_deep_layers:
                program.deepen(first + layer, buffers.hidden)
        self.expert_tokens: list[Ints] = writer.expert_tokens
        self._program = program.build("layers", self.heads)

    @property
    def heads(self) -> Heads:
        """The shape of attention, as a structure for programs."""
        config = self._config
        return Heads(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            kv_type=_KV_TYPES[self.kv_cache_spec.dtype],
            rotary_dim=next((rope.dim for rope in config.ropes if rope), 0),
            scale=config.attention_scale,
            softcap=config.attention_softcap,
        )

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: Pages,
        given: GivenRows | None = None,
    ) -> torch.Tensor:
        """Compute token ids [T] up to the residual stream [T, hidden] after the last layer; valid until the next step."""
        tokens = self._tokens(token_ids, positions, caches, metadata)
        if given is not None:
            assert given.deep is None or len(given.deep) == self._config.num_deep_layers, "one operation for each"
            if self._share.shard.index:
                given = replace(given, values=np.zeros_like(given.values))  # given by one rank only, as ranks are summed
            tokens = _with_given(tokens, given)
        self._program.run(len(token_ids), tokens, metadata, adapters=self._loras.selected)
        return self._program.result(self._hidden, len(token_ids))

    def add_to(
        self,
        hidden: torch.Tensor,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: Pages,
        given: GivenRows | None = None,
    ) -> None:
        """Compute the layers on the residual stream [T, hidden], contiguous, in place; see StageModel."""
        tokens = self._tokens(token_ids, positions, caches, metadata)
        if given is not None:
            tokens = _with_given(tokens, given)
        self._program.run(len(hidden), tokens, metadata, given={self._hidden: hidden}, adapters=self._loras.selected)

    def _tokens(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: Pages,
    ) -> Tokens:
        if metadata.axes is None:
            turns, rows = [table.up_to(metadata.num_positions) for table in self._turns], None
        else:
            turns = [table.of_axes(positions.numpy(), metadata.axes) for table in self._turns]
            rows = np.arange(len(positions))
        return Tokens(token_ids.contiguous().numpy(), positions.contiguous().numpy(), turns, caches[0], turn_rows=rows)

    def _write_embedding(self, program: ProgramBuilder, parameters: NativeParameters, embedding: NativeMatrix) -> None:
        config, rows = self._config, self._config.num_learned_positions
        positions = parameters.table("model.embed_positions.weight", rows, config.hidden_size) if rows else None
        site = self._loras.add_table("model.embed_tokens", config.vocab_size, config.hidden_size)
        program.embed(
            embedding,
            self._hidden,
            scale=config.embedding_multiplier,
            positions=positions if self._share.shard.index == 0 else None,  # added by one rank only, as ranks are summed
            site=site,
            first_id=self._share.first_id,
        )
        if not self._share.is_whole:
            program.sum(self._hidden, self._hidden)
        if config.has_norm_of_embeddings:
            program.norm(read_norm(config, parameters, "model.embed_norm"), self._hidden, self._hidden)


def _with_given(tokens: Tokens, given: GivenRows) -> Tokens:
    """Return tokens of which some have given rows; the rows must live until the step has run."""
    num_tokens, deep = len(tokens.token_ids), given.deep
    return replace(
        tokens,
        embeddings=_addresses(given.values, given.rows, num_tokens),
        deep=None if deep is None else np.stack([_addresses(values, given.rows, num_tokens) for values in deep]),
    )


def _addresses(values: Floats, rows: Ints, num_tokens: int) -> npt.NDArray[np.uint64]:
    """Return the addresses [T] of the values [N, hidden] of rows [N]; 0 for the other tokens."""
    assert values.flags.c_contiguous, "rows of embeddings follow each other"
    found = np.zeros(num_tokens, np.uint64)
    found[rows] = values.ctypes.data + np.arange(len(rows)) * values.strides[0]
    return found
