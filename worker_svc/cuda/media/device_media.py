"""Device media: what a runner on a device needs of a model that reads images."""

from typing import NamedTuple

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.media import ModelMedia
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.media.slot_media import SlotDeviceMedia
from tetrad.worker_svc.model_facts.config import ModelConfig


class DeviceMedia(NamedTuple):
    """The tower of a model, its encoder cache in device memory, and the layers of this rank.

    Attributes:
        media: the tower and the cache, whose values are tensors on the device.
        layers: the description of this rank's layers.
        accelerator: the device.
    """

    media: ModelMedia
    layers: ModelConfig
    accelerator: Accelerator

    def of(self, batch: InputBatch) -> SlotDeviceMedia:
        """Return a runner's part for images."""
        layers = self.layers
        return SlotDeviceMedia(self.media, batch, self.accelerator, has_axes=layers.has_axes, reads_rows=reads_rows(layers))


def reads_rows(layers: ModelConfig) -> bool:
    """Return whether layers read embeddings of images: those of the first stage do, and those with DeepStack's rows."""
    first = layers.stage.first_layer if layers.stage else 0
    return layers.has_embeddings or first < layers.num_deep_layers
