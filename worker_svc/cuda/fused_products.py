"""Fused products: the products of a layer with few rows, each with the small operations around it (kernels/few_rows.py)."""

import torch

from tetrad.worker_svc.attention.interface import AttentionShape
from tetrad.worker_svc.kernels.added_product import added_product
from tetrad.worker_svc.kernels.normed_products import normed_gated, normed_product, normed_qkv
from tetrad.worker_svc.kernels.rotate_and_cache import rotate_and_cache
from tetrad.worker_svc.kernels.scaled_stream import Scaled
from tetrad.worker_svc.kernels.tile_shapes import Rule, TileShape, shape_by_rule, whole_shape_by_rule
from tetrad.worker_svc.layers.linear import Linear, PlainLinear
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.quantization.context import ProductContext

MOST_ROWS = 32
"""Largest number of rows of fused products, those of one tile. An H100 is faster with them; more rows are not measured."""


class FusedProducts:
    """The products of a model's layers; all of them have weights in floats.

    Args:
        config: the model's description.
        context: tile shapes, and tickets.
    """

    def __init__(self, config: ModelConfig, context: ProductContext) -> None:
        self._num_heads, self._eps, self._context = config.num_heads, config.norm_eps, context

    def queries(
        self,
        stream: Scaled,
        qkv: Linear,
        cos_sin: torch.Tensor,
        slots: torch.Tensor,
        cache: torch.Tensor,
        shape: AttentionShape,
        head_norms: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        """Return the queries [T, H, head size] of a layer, and write its keys and values.

        See normed_qkv, and rotate_and_cache for `head_norms`.
        """
        qkv = _plain(qkv)
        if head_norms is None:
            return normed_qkv(
                stream,
                qkv.weight,
                qkv.bias,
                cos_sin,
                slots,
                cache,
                self._num_heads,
                eps=self._eps,
                shape=self._tiles("normed_qkv", stream.values, qkv.weight, whole_shape_by_rule),
                key_scale=shape.key_scale,
                value_scale=shape.value_scale,
            )
        tiles = self._tiles("normed_product", stream.values, qkv.weight, whole_shape_by_rule)
        heads = normed_product(stream, qkv.weight, qkv.bias, eps=self._eps, shape=tiles)
        scales = shape.key_scale, shape.value_scale
        rotate_and_cache(heads, cos_sin, slots, cache, self._num_heads, *scales, head_norms, self._eps)
        return heads.view(len(heads), -1, cache.shape[4])[:, : self._num_heads]

    def add(self, x: torch.Tensor, linear: Linear, residual: torch.Tensor, norm: torch.Tensor) -> Scaled:
        """Add a product of x [T, ...] to the residual stream [T, hidden], and return it before a norm; see added_product."""
        x, linear = x.view(len(x), -1), _plain(linear)
        shape = self._tiles("added_product", x, linear.weight)
        return added_product(x, linear.weight, linear.bias, residual, norm, shape=shape, tickets=self._context.tickets)

    def gated(self, stream: Scaled, gate_up: Linear) -> torch.Tensor:
        """Return the gated activations [T, intermediate size] of a layer; see normed_gated."""
        weight = _plain(gate_up).weight
        shape = self._tiles("normed_gated", stream.values, weight, whole_shape_by_rule)
        return normed_gated(stream, weight, eps=self._eps, shape=shape)

    def _tiles(self, kernel: str, x: torch.Tensor, weight: torch.Tensor, rule: Rule = shape_by_rule) -> TileShape:
        num_outputs, num_columns = weight.shape
        shape = self._context.shapes.of(kernel, len(x), num_outputs, num_columns, rule)
        assert shape is not None, "torch has no such product"
        return shape


def can_fuse(qkv: Linear, output: Linear, gate_up: Linear, down: Linear, dtype: torch.dtype) -> bool:
    """Return whether fused products can replace a layer's: weights in floats, without adapters or ranks; no float16."""
    are_plain = all(isinstance(each, PlainLinear) for each in (qkv, output, gate_up, down))
    return are_plain and dtype != torch.float16 and isinstance(gate_up, PlainLinear) and gate_up.bias is None


def _plain(linear: Linear) -> PlainLinear:
    assert isinstance(linear, PlainLinear), "can_fuse has seen it"
    return linear
