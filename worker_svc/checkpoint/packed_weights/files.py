"""Checkpoint tensors for readers of packed matrices, by their names in the files. Errors give tensor, shape and type."""

from collections.abc import Collection
from typing import Protocol

import torch

from tetrad.services.errors import ModelError

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class StoredTensors(Protocol):
    """The tensors of a model's files."""

    def has(self, name: str) -> bool:
        """Return whether there is a tensor with this name."""

    def load_stored(self, name: str) -> torch.Tensor:
        """Return the tensor in its stored type; raise KeyError if there is none."""


def load(files: StoredTensors, name: str, *shapes: tuple[int, ...], dtypes: Collection[torch.dtype]) -> torch.Tensor:
    """Return a tensor; raise ModelError if it is missing, of another type, or of another shape (no shapes: any is allowed)."""
    if not files.has(name):
        raise ModelError(f"The model's files have no tensor {name}, which its quantization needs.")
    tensor = files.load_stored(name)
    if tensor.dtype not in dtypes:
        expected = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        found = str(tensor.dtype).removeprefix("torch.")
        raise ModelError(f"Tensor {name} is of type {found}, but its quantization asks for {expected}.")
    if shapes and tuple(tensor.shape) not in shapes:
        expected = " or ".join(str(shape) for shape in shapes)
        raise ModelError(f"Tensor {name} has shape {tuple(tensor.shape)}, but its quantization asks for {expected}.")
    return tensor


def load_matrix(files: StoredTensors, name: str, *, dtypes: Collection[torch.dtype]) -> torch.Tensor:
    """Return a tensor of two dimensions, neither of them 0; raise ModelError otherwise."""
    tensor = load(files, name, dtypes=dtypes)
    if tensor.dim() != 2 or not tensor.numel():
        raise ModelError(f"Tensor {name} has shape {tuple(tensor.shape)}, but its quantization asks for a matrix.")
    return tensor


def number_of_groups(name: str, columns: int, group: int) -> int:
    """Return the number of groups of `group` columns (0: all); raise ModelError if they do not fit.

    Groups must be whole, and of a multiple of 32 columns.
    """
    size = group or columns
    if columns % size or size % 32:
        raise ModelError(f"Tensor {name} has {columns} columns, in groups of {size}; supported: groups of a multiple of 32.")
    return columns // size


def columns_of_group(name: str, columns: int, num_groups: int) -> int:
    """Return the number of columns that share a scale; raise ModelError unless it is a multiple of 32."""
    if num_groups == 0 or columns % num_groups or columns // num_groups % 32:
        raise ModelError(f"Tensor {name} has {num_groups} groups of {columns} columns; supported: groups of a multiple of 32.")
    return columns // num_groups
