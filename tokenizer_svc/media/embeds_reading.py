"""Reading of embeddings: turns the file of an item's embeddings into the tensors that the worker takes.

Runs in the processes of media, beside the model's processor. Error texts are vLLM's where it has them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tetrad.services.models.media_embeds import split_embeds
from tetrad.tokenizer_svc.media.items import MediaError
from tetrad.tokenizer_svc.media.torch_file import read_torch_file

_MATRIX, _BATCH = 2, 3

Tensors = dict[str, NDArray[np.generic]]


def read_embeds(data: bytes, *, name: str, size: int, grid: str) -> Tensors:
    """Return the tensors of an item: embeddings [N, size] in float32, and its grid [3] in int64 if the model needs one.

    Args:
        data: the file; see services/models/media_embeds.py.
        name: name of the embeddings, such as "image_embeds".
        size: number of values of an embedding.
        grid: name of the tensor with times, rows and columns of patches; empty: the model needs none.

    Raises:
        MediaError: a tensor is missing or unknown, cannot be read, or does not fit the model.
    """
    try:
        files = split_embeds(data)
    except ValueError as error:
        raise MediaError(str(error)) from error
    wanted = [name, grid] if grid else [name]
    if files.keys() != set(wanted):
        found = ", ".join(sorted(files))[:200]
        raise MediaError(f"The data should contain the fields: {', '.join(wanted)}, but has the following keys: {found}")
    tensors: Tensors = {name: _rows(read_torch_file(files[name]), name.partition("_")[0].capitalize(), size)}
    if grid:
        tensors[grid] = _grid(read_torch_file(files[grid]), grid)
    return tensors


def _rows(values: NDArray[Any], modality: str, size: int) -> NDArray[np.float32]:
    shape = tuple(values.shape)
    if values.dtype.kind != "f":
        raise MediaError(f"{modality} embedding must be of a floating-point type, got {values.dtype}")
    if values.ndim not in (_MATRIX, _BATCH):
        raise MediaError(
            f"{modality} embedding must be 2D (seq_len, hidden_size) or 3D (batch, seq_len, hidden_size), "
            f"got {values.ndim}D tensor with shape {shape}"
        )
    if shape[-1] != size:
        raise MediaError(
            f"{modality} embedding hidden dimension mismatch: got {shape[-1]}, but model expects {size}. "
            f"Embedding shape: {shape}"
        )
    if not values.size or (values.ndim == _BATCH and shape[0] != 1):
        raise MediaError(f"{modality} embedding of shape {shape} must be one item of at least one embedding")
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(values.reshape(-1, size), np.float32)
    if not np.isfinite(rows).all():
        raise MediaError(f"{modality} embedding has values that are not finite in float32")
    return rows


def _grid(values: NDArray[Any], name: str) -> NDArray[np.int64]:
    if values.dtype.kind != "i" or values.size != len(("time", "rows", "columns")) or values.min() < 1:
        raise MediaError(f"{name} must be three integers of at least 1, got {values.dtype} of shape {tuple(values.shape)}")
    return np.ascontiguousarray(values.reshape(-1), np.int64)
