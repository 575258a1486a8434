"""Prompt embeddings: reads and checks the embeddings that replace token ids at positions of a prompt.

The sources are a caller's tensor (library) or a safetensors file (HTTP, prompt adapters); the engine's wire encodes the values
as float32. The functions that need numpy import it: most frontends never receive an embedding.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tetrad.services.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np

_FLOAT32_BYTES = 4
_MATRIX = 2
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_PICKLES = (b"PK\x03\x04", b"\x80")
"""The first bytes of files of torch.save and of pickles."""


@dataclass(frozen=True, slots=True)
class PromptEmbeds:
    """Rows of float32 values for some positions of a prompt.

    Attributes:
        content: the values of all rows, one after another, little-endian.
        hidden_size: number of values of a row.
        is_token_ids: for each position of the prompt 1 if it has a token id, 0 if it has the next row. Empty: all positions
            have rows.
    """

    content: bytes
    hidden_size: int
    is_token_ids: bytes = b""

    @property
    def num_rows(self) -> int:
        """The number of positions that have embeddings."""
        return len(self.content) // (_FLOAT32_BYTES * self.hidden_size)

    @property
    def num_positions(self) -> int:
        """The number of positions of the prompt."""
        return len(self.is_token_ids) or self.num_rows

    @property
    def num_bytes(self) -> int:
        """The size in bytes of the embeddings in a message."""
        return len(self.content) + len(self.is_token_ids)

    def before(self, num_tokens: int, others: "PromptEmbeds | None" = None) -> "PromptEmbeds":
        """Return these rows as the start of a prompt that continues with `num_tokens` token ids, or with other rows."""
        if others is None:
            return PromptEmbeds(self.content, self.hidden_size, bytes(self.num_rows) + b"\1" * num_tokens)
        if others.hidden_size != self.hidden_size:
            text = f"`prompt_embeds` hidden_size {others.hidden_size} does not match the adapter's {self.hidden_size}."
            raise _wrong(text)
        kinds = bytes(self.num_rows) + others.is_token_ids if others.is_token_ids else b""
        return PromptEmbeds(self.content + others.content, self.hidden_size, kinds)


def embeds_of_tensor(tensor: Any) -> PromptEmbeds:
    """Return the rows of a torch tensor or a numpy array [positions, hidden_size] of floats; a leading 1 is dropped.

    InvalidRequest with the reason for any other value.
    """
    import numpy as np

    if hasattr(tensor, "detach"):  # a torch tensor; the frontend does not import torch
        if not tensor.is_floating_point():
            raise _wrong(f"`prompt_embeds` of dtype {tensor.dtype} is not of a floating-point type.")
        tensor = tensor.detach().cpu().float().numpy()
    if not isinstance(tensor, np.ndarray):
        raise _wrong(f"`prompt_embeds` must be a torch tensor or a numpy array, got {type(tensor).__name__}.")
    if tensor.dtype.kind != "f":
        raise _wrong(f"`prompt_embeds` of dtype {tensor.dtype} is not of a floating-point type.")
    return _embeds_of_array(tensor)


def among_tokens(texts: Sequence[list[int]], embeds: Sequence[PromptEmbeds]) -> tuple[list[int], PromptEmbeds]:
    """Return the ids of a prompt, 0 where it has embeddings, and its embeddings.

    Args:
        texts: the ids before the first of `embeds`, between each two, and after the last one.
        embeds: at least one; InvalidRequest if their rows differ in size.
    """
    size, ids, kinds = embeds[0].hidden_size, list(texts[0]), bytearray(b"\1" * len(texts[0]))
    for each, behind in zip(embeds, texts[1:], strict=True):
        if each.hidden_size != size:
            raise _wrong(f"`prompt_embeds` of one prompt have hidden_size {size} and {each.hidden_size}; it must be one.")
        ids += [0] * each.num_rows + behind
        kinds += bytes(each.num_rows) + b"\1" * len(behind)
    return ids, PromptEmbeds(b"".join(each.content for each in embeds), size, bytes(kinds))


def embeds_of_safetensors(data: bytes, *, name: str = "", refuse: Callable[[str], Exception] | None = None) -> PromptEmbeds:
    """Return the rows of a tensor in a safetensors file; without `name` the file must have exactly one tensor.

    Args:
        data: the whole file. Its tensor is [positions, hidden_size] of type F64, F32, F16 or BF16; a leading 1 is dropped.
        name: name of the tensor.
        refuse: makes the error to raise from its text; by default an InvalidRequest for the field `prompt_embeds`.
    """
    import numpy as np
    from safetensors import SafetensorError, deserialize

    refuse = refuse or _wrong
    try:
        tensors = dict(deserialize(data))  # type: ignore[no-untyped-call] # its stub says no types
    except (SafetensorError, ValueError) as error:
        if data.startswith(_PICKLES):
            raise refuse(
                "`prompt_embeds` is a file of torch.save, which is not read: send a safetensors file instead."
            ) from None
        raise refuse(f"`prompt_embeds` is not a safetensors file: {error}.") from None
    if not name and len(tensors) != 1:
        raise refuse(f"`prompt_embeds` must hold one tensor; the file has {len(tensors)}.")
    found = tensors.get(name) if name else next(iter(tensors.values()))
    if found is None:
        raise refuse(f"the file has no tensor {name}; it has {json.dumps(sorted(tensors))[:200]}.")
    dtype, shape = str(found["dtype"]), [int(size) for size in found["shape"]]
    if dtype not in _DTYPES:
        raise refuse(f"`prompt_embeds` of dtype {dtype} is not a floating-point type; it may be {', '.join(_DTYPES)}.")
    values = np.frombuffer(found["data"], _DTYPES[dtype])
    if dtype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return _embeds_of_array(values.reshape(shape), refuse)


def _embeds_of_array(values: "np.ndarray[Any, Any]", refuse: Callable[[str], Exception] | None = None) -> PromptEmbeds:
    import numpy as np

    refuse = refuse or _wrong
    shape = values.shape
    if len(shape) == _MATRIX + 1 and shape[0] == 1:
        values = values[0]
    if values.ndim != _MATRIX or not values.size:
        raise refuse(f"`prompt_embeds` must be a 2D tensor of shape (num_tokens, hidden_size); got shape {shape}.")
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(values, "<f4")
    if not np.isfinite(values).all():
        raise refuse("`prompt_embeds` has values that are not finite in float32.")
    return PromptEmbeds(values.tobytes(), values.shape[1])


def _wrong(text: str) -> InvalidRequest:
    return InvalidRequest(text, field="prompt_embeds")
