"""Tower of transformers: runs the vision or audio model and the projector of a model with transformers' own modules.

It runs on any device. Knows nothing of files: tower_loading.py makes the module.
"""

from typing import Any

import numpy as np
import torch

from tetrad.services.errors import InternalError, InvalidRequest, TetradError, one_line
from tetrad.services.log import get_logger
from tetrad.worker_svc.core.media import EncodedItem
from tetrad.worker_svc.core.memory_shortage import memory_for
from tetrad.worker_svc.core.plan import EncoderItem
from tetrad.worker_svc.media.reader import Encoded, Inputs, ItemReader

SMALLER_ITEM = "Send a smaller item, or lower --kv-cache-memory-gib or --gpu-memory-utilization."

log = get_logger()


class TransformersTower:
    """See core.media.Tower.

    Args:
        module: transformers' model without its text layers, in evaluation mode on its device.
        reader: reads items.
        has_own_thread: see Tower.
    """

    is_attended = False

    def __init__(self, module: Any, reader: ItemReader, *, has_own_thread: bool) -> None:
        self._module, self._reader = module, reader
        self._hidden_size = int(module.config.get_text_config().hidden_size)
        self.modalities, self.has_own_thread = reader.modalities, has_own_thread
        self.uses_mrope, self.num_deep_layers = reader.uses_mrope, reader.num_deep_layers
        weights = list(module.parameters())
        self.num_parameters = sum(each.numel() for each in weights)
        self.size_bytes = sum(each.nbytes for each in weights)
        self._value_bytes: int = weights[0].element_size()
        self.embed_bytes = self._hidden_size * (1 + self.num_deep_layers) * self._value_bytes

    @torch.inference_mode()
    def encode(self, item: EncoderItem) -> EncodedItem:
        """See Tower."""
        try:
            with memory_for(f"Encoding a media item of {item.num_embeds} embeddings", None, SMALLER_ITEM):
                encoded = self._encode(item)
        except TetradError:
            raise
        except Exception as error:
            if self._is_lost():
                raise
            log.warning("media.failed", identifier=item.identifier, exc_info=error)
            raise InternalError(f"The media item cannot be encoded: {one_line(error)}.") from error
        self._check(item, encoded)
        return encoded

    def activation_bytes(self, num_embeds: int) -> int:
        """See Tower."""
        return self._reader.activation_values(num_embeds) * self._value_bytes

    def _encode(self, item: EncoderItem) -> EncodedItem:
        given = item.tensors.get(f"{item.modality}_embeds")
        return self._kept(*(self._given(given) if given is not None else self._reader.encode(item, self._call)))

    def _given(self, values: Any) -> Encoded:
        """Return embeddings that a client has computed, [N, hidden * (1 + L)]: the deep values stand behind the others."""
        if values.dtype != np.float32 or values.ndim != len(("N", "hidden")) or values.shape[1] % self._hidden_size:
            shape = f"{values.dtype} {list(values.shape)}"
            raise InvalidRequest(f"The embeddings are {shape}; the model takes float32 in rows of {self._hidden_size} values.")
        weight = next(self._module.parameters())
        # A copy: the array may be in a message.
        moved = torch.from_numpy(values.copy()).to(weight.device, weight.dtype)
        rows, *deep = torch.split(moved, self._hidden_size, dim=1)
        if len(deep) != self.num_deep_layers:
            raise InvalidRequest(
                f"The embeddings have values of {len(deep)} deep layers; the model has {self.num_deep_layers}."
            )
        return rows, torch.stack(deep) if deep else None

    def _call(self, method: str, inputs: Inputs) -> Encoded:
        """See Call."""
        weight = next(self._module.parameters())
        moved = {
            name: each.to(weight.device, weight.dtype if each.is_floating_point() else None) for name, each in inputs.items()
        }
        output = getattr(self._module, method)(**moved)
        deep = getattr(output, "deepstack_features", None) if self.num_deep_layers else None
        return _rows(output.pooler_output), None if deep is None else torch.stack([_rows(each) for each in deep])

    def _kept(self, rows: torch.Tensor, deep: torch.Tensor | None) -> EncodedItem:
        """Return the output [N, hidden], and deep values [L, N, hidden], in the memory that the encoder cache is in."""
        return EncodedItem(_host(rows), None if deep is None else _host(deep))

    def _is_lost(self) -> bool:
        """Return whether the device can no longer be used after an error; on a host, an error concerns the item alone."""
        return False

    def _are_finite(self, values: Any) -> bool:
        return bool(np.isfinite(values).all())

    def _check(self, item: EncoderItem, encoded: EncodedItem) -> None:
        if encoded.rows.shape != (item.num_embeds, self._hidden_size):
            raise InternalError(
                f"The media item became embeddings of shape {list(encoded.rows.shape)}; its prompt has {item.num_embeds} "
                f"placeholders for embeddings of {self._hidden_size} values."
            )
        if not all(self._are_finite(each) for each in encoded if each is not None):
            raise InternalError("The media item became embeddings that are not finite.")


def _rows(features: Any) -> torch.Tensor:
    """Return features of one item, [N, hidden]: of each tile, or a list with one entry for each image."""
    parts = list(features) if isinstance(features, (list, tuple)) else [features]
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


def _host(rows: torch.Tensor) -> Any:
    return rows.float().cpu().contiguous().numpy()
