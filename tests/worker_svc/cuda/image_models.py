"""Tiny models with images on the interpreted device: rows of an encoder cache in place of a tower's outputs."""

from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import torch

from tests.worker_svc.conftest import Driver
from tests.worker_svc.families.image_prompts import ImagePrompt
from tetrad.worker_svc.core.media import EncodedItem, Modality, ModelMedia
from tetrad.worker_svc.core.plan import MediaSpan, SamplingSpec
from tetrad.worker_svc.cuda.media.device_media import DeviceMedia
from tetrad.worker_svc.devices.cuda_model import CudaModel
from tetrad.worker_svc.media.encoder_cache import EncoderCache

STREAM = 1


def give_cache(model: CudaModel, num_deep: int) -> EncoderCache:
    """Let a model take images, whose rows are put into the returned cache."""
    cache = EncoderCache()
    cache.restart(STREAM)
    tower = SimpleNamespace(modality=Modality("image", 64), num_deep_layers=num_deep)
    model._media = DeviceMedia(ModelMedia(tower, cache), model.decoder.config, model._accelerator)
    return cache


def add_prompt(driver: Driver, handle: int, prompt: ImagePrompt, sampling: SamplingSpec, *, has_axes: bool) -> None:
    spans = [span for span, _, _ in spans_of(prompt, handle, has_axes=has_axes)]
    driver.add(handle, prompt.token_ids, sampling, media=tuple(spans))


def put_images(cache: EncoderCache, prompts: Mapping[int, ImagePrompt], device: torch.device) -> None:
    for handle, prompt in prompts.items():
        for span, values, deep in spans_of(prompt, handle, has_axes=False):
            rows = torch.from_numpy(values.copy()).to(device)
            its_deep = None if deep is None else torch.from_numpy(deep.copy()).to(device)
            cache.put(STREAM, span.identifier, EncodedItem(rows, its_deep), 0)


def spans_of(prompt: ImagePrompt, handle: int, *, has_axes: bool) -> list[tuple[MediaSpan, np.ndarray, np.ndarray | None]]:
    """Return the images of a prompt, with their rows."""
    breaks = np.flatnonzero(np.diff(prompt.places) > 1) + 1
    parts, first = np.split(prompt.places, breaks) if len(prompt.places) else [], 0
    found = []
    for number, places in enumerate(parts):
        rows, begin = slice(first, first + len(places)), int(places[0])
        height, width = (int(np.ptp(prompt.axes[axis, places])) + 1 for axis in (1, 2))
        grid = (1, height, width) if has_axes else None
        span = MediaSpan(f"{handle}-{number}", "image", begin, len(places), None, len(places), grid)
        found.append((span, prompt.values[rows], None if prompt.deep is None else prompt.deep[:, rows]))
        first = rows.stop
    return found
