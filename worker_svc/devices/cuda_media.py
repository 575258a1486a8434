"""Media of the cuda device: loads the tower of a model that reads images to the device, beside the model."""

from functools import partial

import torch

from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.media import ModelMedia
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.media.device_media import DeviceMedia, reads_rows
from tetrad.worker_svc.cuda.media.tower import DeviceTower
from tetrad.worker_svc.cuda.ranks.towers import AbsentTower
from tetrad.worker_svc.cuda.torch_attention import MAX_HEAD_DIM
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
    sees_ahead = layers.head_dim <= MAX_HEAD_DIM  # attention by kernels; that over gathered pages does not follow ends
    tower = load_tower(request, dtype, accelerator.device, has_own_thread=has_own_thread, sees_ahead=sees_ahead, make=make)
    return None if tower is None else DeviceMedia(ModelMedia(tower, EncoderCache()), layers, accelerator)


def load_media_of_rank(
    request: LoadRequest, layers: ModelConfig, dtype: torch.dtype, accelerator: Accelerator, *, is_leader: bool
) -> DeviceMedia | None:
    """Return the tower of one of several ranks; its weights are loaded if the rank encodes images. See `load_media`."""
    media = load_media(request, layers, dtype, accelerator, has_own_thread=False)
    if media is None or is_leader or reads_rows(layers):
        return media
    return media._replace(media=media.media._replace(tower=AbsentTower(media.media.tower)))
