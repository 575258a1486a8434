"""Kernel decoder: runs the computation of models/decoder.py with the device's kernels.

A layer takes nine launches, or five with few rows, if each of its products can include the operations around it. `x` is the
normed input of the next product; `residual` is the residual stream. The norm after a layer adds the layer's output to the
residual stream. A stage of a pipeline may begin with a residual stream, or end with one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tetrad.worker_svc.attention.interface import AttentionShape
from tetrad.worker_svc.cuda.attention import DeviceStep
from tetrad.worker_svc.cuda.cache_scales import cache_scales
from tetrad.worker_svc.cuda.decoder_ends import DecoderEnds
from tetrad.worker_svc.cuda.device.weight_offload import WeightOffload
from tetrad.worker_svc.cuda.fused_products import MOST_ROWS, FusedProducts, can_fuse
from tetrad.worker_svc.cuda.interface import DeviceParameters
from tetrad.worker_svc.kernels.activation import silu_mul
from tetrad.worker_svc.kernels.rms_norm import add_rms_norm, rms_norm
from tetrad.worker_svc.kernels.rotate_and_cache import rotate_and_cache
from tetrad.worker_svc.kernels.scaled_stream import scale_stream
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec
from tetrad.worker_svc.kv_cache.layer_groups import group_of_layers, groups_of
from tetrad.worker_svc.layers.linear import Linear
from tetrad.worker_svc.layers.rotary import interleave_heads, rotary_of
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.traits import Trait
from tetrad.worker_svc.models.decoder import GivenEmbeddings
from tetrad.worker_svc.models.draft_head import NoTaps, Taps
from tetrad.worker_svc.models.layer_stack import NO_DEEP_ROWS, DeepRows
from tetrad.worker_svc.quantization.context import product_context

TRAITS = frozenset({Trait.WINDOWS, Trait.HEAD_NORMS, Trait.SCALE, Trait.SOFTCAP, Trait.SINKS})
"""The traits beyond Llama that this program supports."""


@dataclass(frozen=True, slots=True)
class _Layer:
    shape: AttentionShape
    input_norm: torch.Tensor
    qkv: Linear
    head_norms: tuple[torch.Tensor, torch.Tensor] | None  # weights for queries and keys
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class KernelDecoder:
    """A decoder that has no traits except TRAITS; it keeps no state between steps. See DeviceModel.

    Args:
        config: the model's description.
        linears: loads the weights to the device.
        kv_cache_dtype: type of keys and values.
        offload: holds the layers whose matrices are in host memory.
        taps: reads hidden states between layers.
        vocab_size: vocabulary size of the whole model, if `config` describes a part of it; None: the config's.
    """

    def __init__(
        self,
        config: ModelConfig,
        linears: DeviceParameters,
        kv_cache_dtype: torch.dtype,
        offload: WeightOffload,
        taps: Taps = NoTaps(),  # noqa: B008 - it has no state
        vocab_size: int | None = None,
    ) -> None:
        self.config = config if vocab_size is None else replace(config, vocab_size=vocab_size)
        self.offload, self._taps = offload, taps
        self.has_kernel_attention, self.host_steps, self.bytes_per_draft = True, None, 0
        self._first_layer = config.stage.first_layer if config.stage else 0
        groups = groups_of(config)
        self._group_of_layers = group_of_layers(groups)
        self.kv_cache_spec = KvCacheSpec(groups, config.num_kv_heads, config.head_dim, kv_cache_dtype)
        self._ends = DecoderEnds(config, linears)
        self._layers: list[_Layer] = []
        for index in range(config.num_layers):
            first = len(linears.tensors)
            self._layers.append(_read_layer(config, linears, index, kv_cache_dtype))
            offload.take(self._layers[-1], linears.tensors[first:])
        norms = [layer.input_norm for layer in self._layers]
        # A stage before the last norms its stream in vain: the kernels that add to the stream also norm it.
        self._following = [*norms[1:], norms[-1] if self._ends.norm is None else self._ends.norm]
        [rope] = config.ropes
        assert rope is not None, "a model without rotation has a trait that is not this program's"
        self.dtype, device = linears.dtype, norms[0].device
        self._rotary = rotary_of(rope.dim, rope.theta, rope.scaling, rope.axes).to(device)
        self._fused = FusedProducts(config, product_context(device, self.dtype))
        self._most_fused = MOST_ROWS if all(_can_fuse(layer, self.dtype) for layer in self._layers) else 0

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: Sequence[DeviceStep],
        *,
        given: GivenEmbeddings | None = None,
        axes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the hidden states [T, hidden] after the last layer, normed if it is the model's; see DeviceModel."""
        cos_sin = self._rotary.cos_sin(positions, axes)
        residual, deep = self._ends.enter(token_ids, given), NO_DEEP_ROWS if given is None else given.deep_rows
        steps = [metadata[group] for group in self._group_of_layers]
        run = self._run_fused if 0 < len(residual) <= self._most_fused else self._run
        x = run(residual, cos_sin, caches, steps, deep)
        return residual if self._ends.norm is None else x

    def _run(
        self,
        residual: torch.Tensor,
        cos_sin: torch.Tensor,
        caches: list[torch.Tensor],
        steps: Sequence[DeviceStep],
        deep: DeepRows,
    ) -> torch.Tensor:
        """Run the layers on the residual stream [T, hidden], in place, and return the normed hidden states."""
        config = self.config
        x = rms_norm(residual, self._layers[0].input_norm, config.norm_eps)
        each = zip(self.offload.each(self._layers), caches, self._following, steps, strict=True)
        for index, (layer, cache, next_norm, step) in enumerate(each):
            self._taps.see(index, residual)
            qkv = layer.qkv(x)
            rotate_and_cache(
                qkv,
                cos_sin,
                step.kv_slots,
                cache,
                config.num_heads,
                key_scale=layer.shape.key_scale,
                value_scale=layer.shape.value_scale,
                head_norms=layer.head_norms,
                eps=config.norm_eps,
            )
            query = qkv[:, : config.num_heads * config.head_dim].view(len(qkv), config.num_heads, config.head_dim)
            attended = step.attend(query, cache, layer.shape)
            x = add_rms_norm(layer.output(attended), residual, layer.mlp_norm, config.norm_eps)
            x = layer.down(silu_mul(layer.gate_up(x)))
            deep.add_to(residual, self._first_layer + index)  # to what the output is added to, since a norm follows at once
            x = add_rms_norm(x, residual, next_norm, config.norm_eps)
        return x

    def _run_fused(
        self,
        residual: torch.Tensor,
        cos_sin: torch.Tensor,
        caches: list[torch.Tensor],
        steps: Sequence[DeviceStep],
        deep: DeepRows,
    ) -> torch.Tensor:
        """Run the layers with fused products; see _run."""
        fused = self._fused
        stream = scale_stream(residual, self._layers[0].input_norm)
        each = zip(self.offload.each(self._layers), caches, self._following, steps, strict=True)
        for index, (layer, cache, next_norm, step) in enumerate(each):
            self._taps.see(index, residual)
            query = fused.queries(stream, layer.qkv, cos_sin, step.kv_slots, cache, layer.shape, layer.head_norms)
            stream = fused.add(step.attend(query, cache, layer.shape), layer.output, residual, layer.mlp_norm)
            deep.add_to(residual, self._first_layer + index)
            stream = fused.add(fused.gated(stream, layer.gate_up), layer.down, residual, next_norm)
        return rms_norm(residual, self._following[-1], self.config.norm_eps)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [T, hidden] of ids [T], without adapters; the caller may change them."""
        return self._ends.embed(token_ids)

    def normed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the hidden states unchanged: `forward` has normed them."""
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, vocab_size] float32 of hidden states [N, hidden]."""
        return self._ends.logits(hidden)


def _read_layer(config: ModelConfig, linears: DeviceParameters, index: int, kv_cache_dtype: torch.dtype) -> _Layer:
    layer, prefix = config.layers[index], f"model.layers.{index}"
    hidden, dim, size = config.hidden_size, config.head_dim, layer.intermediate_size
    query_size, key_size = config.num_heads * dim, config.num_kv_heads * dim
    attention, mlp, rotary_dim = f"{prefix}.self_attn", f"{prefix}.mlp", layer.rope.dim if layer.rope else 0
    heads = [(f"{attention}.q_proj", query_size), (f"{attention}.k_proj", key_size), (f"{attention}.v_proj", key_size)]
    sinks = linears.vector(f"{attention}.sinks", config.num_heads).float() if config.has_sinks else None
    scales = cache_scales(linears, attention, kv_cache_dtype)
    gates = [(f"{mlp}.gate_proj", size), (f"{mlp}.up_proj", size)]
    return _Layer(
        shape=AttentionShape(config.attention_scale, layer.window, config.attention_softcap, sinks, *scales),
        input_norm=linears.vector(f"{prefix}.input_layernorm.weight", hidden),
        qkv=linears.linear(heads, hidden, rotated=(True, True, False), head_dim=dim, rotary_dim=rotary_dim),
        head_norms=_head_norms(config, linears, attention, rotary_dim) if config.head_norms == "head" else None,
        output=linears.linear([(f"{attention}.o_proj", hidden)], query_size),
        mlp_norm=linears.vector(f"{prefix}.post_attention_layernorm.weight", hidden),
        gate_up=linears.linear(gates, hidden),
        down=linears.linear([(f"{mlp}.down_proj", hidden)], size),
    )


def _can_fuse(layer: _Layer, dtype: torch.dtype) -> bool:
    return can_fuse(layer.qkv, layer.output, layer.gate_up, layer.down, dtype)


def _head_norms(
    config: ModelConfig, linears: DeviceParameters, prefix: str, rotary_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    query, key = (
        interleave_heads(linears.vector(f"{prefix}.{name}_norm.weight", config.head_dim), config.head_dim, rotary_dim)
        for name in "qk"
    )
    return query, key
