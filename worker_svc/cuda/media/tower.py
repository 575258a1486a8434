"""Device tower: encodes images on a device, beside steps or between them, and leaves their embeddings there."""

from contextlib import nullcontext
from typing import Any

import torch

from tetrad.services.errors import FailedPrecondition
from tetrad.worker_svc.core.media import EncodedItem
from tetrad.worker_svc.core.plan import EncoderItem
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.media.tower import SMALLER_ITEM, TransformersTower


class DeviceTower(TransformersTower):
    """See core.media.Tower.

    With a thread of its own, a tower encodes on a stream of its own: steps wait for nothing. Otherwise its work is queued
    between steps.

    Args:
        module, reader, has_own_thread: see TransformersTower.
        accelerator: the device.
    """

    def __init__(self, *arguments: Any, accelerator: Accelerator, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._accelerator = accelerator
        self._tensors = [*self._module.parameters(), *self._module.buffers()]  # moved when the model sleeps

    @torch.inference_mode()
    def encode(self, item: EncoderItem) -> EncodedItem:
        """See Tower; returns after the device has encoded the item."""
        with self._accelerator.apart() if self.has_own_thread else nullcontext():
            return super().encode(item)

    def _encode(self, item: EncoderItem) -> EncodedItem:
        try:
            return super()._encode(item)
        except torch.OutOfMemoryError:
            free, total = self._accelerator.memory()
            raise FailedPrecondition(
                f"A media item of {item.num_embeds} embeddings does not fit the device: {free} of {total} bytes were free. "
                f"{SMALLER_ITEM}",
                reason="NO_MEMORY",
            ) from None

    def _kept(self, rows: torch.Tensor, deep: torch.Tensor | None) -> EncodedItem:
        return EncodedItem(rows.contiguous(), None if deep is None else deep.contiguous())

    def _is_lost(self) -> bool:
        """See TransformersTower; asks the device."""
        try:
            self._accelerator.check()
        except RuntimeError:
            return True
        return False

    def _are_finite(self, values: torch.Tensor) -> bool:
        return bool(values.isfinite().all())
