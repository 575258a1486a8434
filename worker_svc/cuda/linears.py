"""Linears: a model's matrices on the device, in floats or quantized, and the loader that makes them.

Products of one input are fused where their parts have one form. The form of each matrix is read from the files, so layers that
a checkpoint left in floats stay so. GGUF files are dequantized to the type of the activations.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.cuda.output_layer import output_layer
from tetrad.worker_svc.layers.linear import Linear, PlainLinear, SideBySide
from tetrad.worker_svc.layers.parameters import Lookup
from tetrad.worker_svc.layers.rotary import interleave_heads
from tetrad.worker_svc.quantization.context import product_context
from tetrad.worker_svc.quantization.matrix import Matrix, can_fuse, fused
from tetrad.worker_svc.quantization.plain import PlainScheme
from tetrad.worker_svc.quantization.schemes import open_scheme


class DeviceLinears:
    """Loads matrices and vectors, each once; the files may be closed afterwards. See Parameters.

    Args:
        config_quantization: what config.json has as `quantization_config`; None: nothing.
        requested: quantize weights that are stored in floats: int8, int4 or fp8; "" leaves them as they are.
        weights: of the model.
        device: where they go.
        dtype: of activations, and of everything that is not quantized.

    Raises:
        ModelError: a quantization that is not supported, or files that do not have what they should.
    """

    def __init__(
        self,
        config_quantization: Mapping[str, Any] | None,
        requested: str,
        weights: WeightLoader,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._weights, self._device, self._dtype = weights, device, dtype
        self._plain = PlainScheme(product_context(device, dtype))
        self._scheme = open_scheme(config_quantization, requested, self._plain)
        self.tensors: list[torch.Tensor] = []
        """All that was loaded, as it is held on the device."""

    @property
    def weights_size_bytes(self) -> int:
        """Memory of all that was loaded."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def has(self, name: str) -> bool:
        """Return whether the model has a tensor of this whole name."""
        return self._weights.has(name)

    def linear(
        self,
        names: Sequence[tuple[str, int]],
        in_features: int,
        *,
        rotated: Sequence[bool] | None = None,
        head_dim: int = 0,
        rotary_dim: int | None = None,
    ) -> Linear:
        """Return the product of several weights over one input, their outputs side by side.

        The layer launches kernels and nothing else: [T, in_features] -> [T, outputs], in the input's type.

        Args:
            names: prefixes (without ".weight") and numbers of outputs; biases are used where there are any.
            in_features: columns of each.
            rotated: which parts are queries or keys, whose rows are to be interleaved (layers/rotary.py); None: none.
            head_dim: of those.
            rotary_dim: how many of a head's rows are pairs; None: all.
        """
        parts = [self._scheme.read(self._weights, name, rows, in_features) for name, rows in names]
        biases = [self._bias(name, rows) for name, rows in names]
        for index, (_, rows) in enumerate(names):
            if rotated and rotated[index]:
                order = interleave_heads(torch.arange(rows, device=self._device), head_dim, rotary_dim)
                bias = biases[index]
                parts[index] = parts[index].reordered(order)
                biases[index] = None if bias is None else bias[order]
        if all(can_fuse(parts[0], part) for part in parts[1:]):
            return self._product(fused(parts), _joined(biases, [rows for _, rows in names]))
        return SideBySide([self._product(fused([part]), bias) for part, bias in zip(parts, biases, strict=True)])

    def scalar(self, name: str) -> float:
        """Return a tensor of one value above 0, under its whole name; ModelError if it is none."""
        return self._weights.get_scalar(name)

    def vector(self, name: str, size: int) -> torch.Tensor:
        """Return a tensor [size], as of a norm, under its whole name."""
        return self._own(self._vector(name, size))

    def embedding(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """Return a table [rows, columns], never quantized, under its whole name."""
        [table] = fused([self._plain.read(self._weights, name.removesuffix(".weight"), rows, columns)]).tensors
        return self._own(table)

    def lookup(self, name: str, table: torch.Tensor) -> Lookup:  # noqa: ARG002 - one signature
        """See Parameters."""
        return lambda token_ids: table.index_select(0, token_ids)

    def output(self, name: str, table: torch.Tensor | None, rows: int, columns: int) -> Linear:
        """Return the product with a matrix whose outputs are float32: `table`, or the one of a prefix."""
        if table is None:
            return output_layer(self.linear([(name, rows)], columns))
        return output_layer(PlainLinear(table, self._bias(name, rows)))

    def _product(self, matrix: Matrix, bias: torch.Tensor | None) -> Linear:
        self.tensors += [each for each in (*matrix.tensors, matrix.columns, bias) if each is not None]
        linear = matrix.form.linear(matrix.tensors, bias)
        return linear if matrix.columns is None else GatheredColumns(linear, matrix.columns)

    def _bias(self, name: str, rows: int) -> torch.Tensor | None:
        return self._vector(f"{name}.bias", rows) if self._weights.has(f"{name}.bias") else None

    def _vector(self, name: str, size: int) -> torch.Tensor:
        return self._weights.get_stored(name, (size,)).to(self._device, self._dtype, copy=True)

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        self.tensors.append(tensor)
        return tensor


class GatheredColumns:
    """A Linear whose weight has its columns in another order than the input.

    Args:
        linear: over the columns in their order.
        columns: [in] int64, which of the input's columns each is.
    """

    def __init__(self, linear: Linear, columns: torch.Tensor) -> None:
        self._linear, self._columns = linear, columns

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, outputs]."""
        return self._linear(x.index_select(1, self._columns))


def _joined(biases: Sequence[torch.Tensor | None], sizes: Sequence[int]) -> torch.Tensor | None:
    """Return the biases one after the other, zeros where there is none; None if there is none at all."""
    known = [bias for bias in biases if bias is not None]
    if not known:
        return None
    return torch.cat([known[0].new_zeros(size) if bias is None else bias for bias, size in zip(biases, sizes, strict=True)])
