"""Linears: loads a model's matrices to the device, in floats or quantized.

Products that read the same input are fused if their parts have the same form. The form of each matrix is read from the files,
so layers that a checkpoint keeps in floats stay in floats. GGUF files are dequantized to the type of the activations.
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

_FLOAT32 = (".router_correction", ".A_log")
"""Ends of the names of vectors that stay float32. Differences between the corrections of a router are far smaller than their
values; a rounded decay of a state has an effect that grows with the number of tokens."""


class DeviceLinears:
    """Loads matrices and vectors, each once; the files may be closed afterwards. See Parameters.

    Args:
        config_quantization: the value of `quantization_config` in config.json; None: absent.
        requested: quantization of weights that are stored in floats: int8, int4 or fp8; "": no quantization.
        weights: loads the model's tensors.
        device: the target device.
        dtype: type of activations and of all weights that are not quantized, except the vectors that stay float32.

    Raises:
        ModelError: the quantization is not supported, or the files lack a tensor of it.
    """

    def __init__(
        self,
        config_quantization: Mapping[str, Any] | None,
        requested: str,
        weights: WeightLoader,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._weights, self._device, self.dtype = weights, device, dtype
        self._plain = PlainScheme(product_context(device, dtype))
        self._scheme = open_scheme(config_quantization, requested, self._plain)
        self.tensors: list[torch.Tensor] = []
        """All loaded tensors, as stored on the device."""

    @property
    def weights_size_bytes(self) -> int:
        """The size of all loaded tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def has(self, name: str) -> bool:
        """Return whether the model has a tensor with this full name."""
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
        """Return the product of several weights that read the same input; their outputs are concatenated.

        The layer only launches kernels: [T, in_features] -> [T, outputs], in the input's type.

        Args:
            names: prefixes (without ".weight") and numbers of outputs; biases are used if they exist.
            in_features: number of columns of each weight.
            rotated: whether each part is queries or keys, whose rows are interleaved (layers/rotary.py); None: no part is.
            head_dim: size of a head of queries and keys.
            rotary_dim: number of rows of a head that are interleaved; None: all.
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
        """Return a tensor of one value above 0, by its full name; raise ModelError for another shape or value."""
        return self._weights.get_scalar(name)

    def vector(self, name: str, size: int) -> torch.Tensor:
        """Return a tensor [size], such as the weight of a norm, by its full name."""
        return self._own(self._vector(name, size, torch.float32 if name.endswith(_FLOAT32) else self.dtype))

    def constants(self, values: Sequence[float]) -> torch.Tensor:
        """See Parameters."""
        return self._own(torch.tensor(values, device=self._device))

    def embedding(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """Return a table [rows, columns], never quantized, by its full name."""
        [table] = fused([self._plain.read(self._weights, name.removesuffix(".weight"), rows, columns)]).tensors
        return self._own(table)

    def lookup(self, name: str, table: torch.Tensor) -> Lookup:  # noqa: ARG002 - one signature
        """See Parameters."""
        return TableLookup(table)

    def output(self, name: str, table: torch.Tensor | None, rows: int, columns: int) -> Linear:
        """Return the product with float32 outputs with `table`, or, if it is None, with the matrix of the prefix `name`."""
        if table is None:
            return output_layer(self.linear([(name, rows)], columns))
        return output_layer(PlainLinear(table, self._bias(name, rows)))

    def _product(self, matrix: Matrix, bias: torch.Tensor | None) -> Linear:
        self.tensors += [each for each in (*matrix.tensors, matrix.columns, bias) if each is not None]
        linear = matrix.form.linear(matrix.tensors, bias)
        return linear if matrix.columns is None else GatheredColumns(linear, matrix.columns)

    def _bias(self, name: str, rows: int) -> torch.Tensor | None:
        return self._vector(f"{name}.bias", rows, self.dtype) if self._weights.has(f"{name}.bias") else None

    def _vector(self, name: str, size: int, dtype: torch.dtype) -> torch.Tensor:
        return self._weights.get_stored(name, (size,)).to(self._device, dtype, copy=True)

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        self.tensors.append(tensor)
        return tensor


class TableLookup:
    """A Lookup in a table [rows, columns] on the device. A sleeping model finds the table in it; see offload.tensors_in."""

    def __init__(self, table: torch.Tensor) -> None:
        self._table = table

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the rows [T, columns] of ids [T]."""
        return self._table.index_select(0, token_ids)


class GatheredColumns:
    """A Linear whose weight has its columns in another order than the input.

    Args:
        linear: multiplies inputs in the weight's order of columns.
        columns: [in] int64, the input's column for each of the weight's columns.
    """

    def __init__(self, linear: Linear, columns: torch.Tensor) -> None:
        self._linear, self._columns = linear, columns

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product [T, outputs] of x [T, in]."""
        return self._linear(x.index_select(1, self._columns))


def _joined(biases: Sequence[torch.Tensor | None], sizes: Sequence[int]) -> torch.Tensor | None:
    """Return the concatenated biases, with zeros for missing ones; None if all are missing."""
    known = [bias for bias in biases if bias is not None]
    if not known:
        return None
    return torch.cat([known[0].new_zeros(size) if bias is None else bias for bias, size in zip(biases, sizes, strict=True)])
