"""Media of the cuda device: loads the tower of a model that reads images to the device, beside the model."""

from functools import partial

import torch

from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.media import ModelMedia
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.media.device_media import DeviceMedia
from tetrad.worker_svc.cuda.media.tower import DeviceTower
from tetrad.worker_svc.media.encoder_cache import EncoderCache
from tetrad.worker_svc.media.tower_loading import load_tower
from tetrad.worker_svc.model_facts.config import ModelConfig


def load_media(
    request: LoadRequest, layers: ModelConfig, dtype: torch.dtype, accelerator: Accelerator, *, has_own_thread: bool = True
) -> DeviceMedia | None:
    """Return the tower of a model and an empty encoder cache; None if the model takes only text.

    Args:
        request: the model and its options.
        layers: the description of this rank's layers.
        dtype: type of the tower's weights.
        accelerator: the device.
        has_own_thread: see Tower.
    """
    make = partial(DeviceTower, accelerator=accelerator)
    tower = load_tower(request, dtype, accelerator.device, has_own_thread=has_own_thread, make=make)
    return None if tower is None else DeviceMedia(ModelMedia(tower, EncoderCache()), layers, accelerator)
