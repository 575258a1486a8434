"""Split latents: joins the two matrices of newer GGUF files that expand the latents of DeepSeek's attention.

`attn_k_b` [H, rank, plain_dim] expands a latent to the keys of each head, transposed, and `attn_v_b` [H, value_dim, rank]
expands it to the values; `attn_kv_b` [H * (plain_dim + value_dim), rank] contains both, head by head, as in checkpoints.
"""

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.source import DOWNLOAD_AGAIN, StoredMatrix, WeightSource
from tetrad.worker_svc.checkpoint.wrapped import WrappedSource

_WHOLE = ".attn_kv_b.weight"
_PARTS = (".attn_k_b.weight", ".attn_v_b.weight")


class SplitLatentSource(WrappedSource):
    """A WeightSource of a GGUF file, under GGUF's names. If the file also has the whole matrix, the parts are not read.

    Args:
        source: the file.
        num_heads: number of heads of a layer.
    """

    def __init__(self, source: WeightSource, num_heads: int) -> None:
        super().__init__(source)
        self._num_heads = num_heads

    def has(self, name: str) -> bool:
        """Return whether the file has this tensor or its two parts."""
        return self._source.has(name) or self._is_split(name)

    def unread(self) -> list[str]:
        """Return the names of tensors that have not been loaded, except parts of a matrix that the file also has whole."""
        return [name for name in self._source.unread() if not (name.endswith(_PARTS) and self._source.has(_whole_of(name)))]

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return the tensor in float32 and its bytes as stored."""
        return self._joined(name) if self._is_split(name) else self._source.load(name)

    def load_stored(self, name: str) -> torch.Tensor:
        """Return the tensor in its stored type; a joined tensor is in float32."""
        return self._joined(name)[0] if self._is_split(name) else self._source.load_stored(name)

    def load_quantized(self, name: str) -> tuple[StoredMatrix, int] | None:
        """Return the matrix as stored; None if it is in floats, or joined."""
        return None if self._is_split(name) else self._source.load_quantized(name)

    def _is_split(self, name: str) -> bool:
        return name.endswith(_WHOLE) and not self._source.has(name) and all(map(self._source.has, _parts_of(name)))

    def _joined(self, name: str) -> tuple[torch.Tensor, int]:
        heads, (of_keys, of_values) = self._num_heads, _parts_of(name)
        (keys, key_bytes), (values, value_bytes) = self._source.load(of_keys), self._source.load(of_values)
        rank = values.shape[-1]
        if not rank or keys.numel() % (heads * rank) or values.numel() % (heads * rank):
            raise ModelError(
                f"Tensors {of_keys} and {of_values} have shapes {tuple(keys.shape)} and {tuple(values.shape)}, which are not "
                f"those of {heads} heads. {DOWNLOAD_AGAIN}"
            )
        parts = [keys.reshape(heads, rank, -1).transpose(1, 2), values.reshape(heads, -1, rank)]
        return torch.cat(parts, 1).flatten(0, 1), key_bytes + value_bytes


def _parts_of(name: str) -> list[str]:
    return [f"{name.removesuffix(_WHOLE)}{part}" for part in _PARTS]


def _whole_of(name: str) -> str:
    return f"{name.rpartition('.attn_')[0]}{_WHOLE}"
