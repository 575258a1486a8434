"""Tiny models with images on the interpreted device: rows of an encoder cache in place of a tower's outputs."""

from collections.abc import Sequence

import torch

from tests.worker_svc.conftest import Driver
from tests.worker_svc.families.image_prompts import ImagePrompt, RowsTower
from tetrad.worker_svc.core.media import EncodedItem, ModelMedia
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.cuda.media.device_media import DeviceMedia
from tetrad.worker_svc.devices.cuda_model import CudaModel
from tetrad.worker_svc.media.encoder_cache import EncoderCache


def give_images(model: CudaModel, prompts: Sequence[ImagePrompt], *, is_whole: bool = False) -> None:
    """Let a model take images; those of the prompts are encoded already."""
    cache, config, device = EncoderCache(), model.decoder.config, model._accelerator.device
    for prompt in prompts:
        for span, image in zip(prompt.spans, prompt.images, strict=True):
            parts = (None if each is None else torch.from_numpy(each).to(device) for each in image)
            cache.put(0, span.identifier, EncodedItem(*parts), 0)
    tower = RowsTower(uses_mrope=config.has_axes, num_deep_layers=config.num_deep_layers, is_whole=is_whole)
    model._media = DeviceMedia(ModelMedia(tower, cache), config, model._accelerator)


def add_prompt(driver: Driver, handle: int, prompt: ImagePrompt, sampling: SamplingSpec) -> None:
    driver.add(handle, prompt.token_ids, sampling, media=prompt.spans)
