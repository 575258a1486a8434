"""ImagePreprocessor: turns the images of a request into features: limits, identifiers, the cache, processes, the family's rule.

Called on the event loop. Knows images; `expansion.py` places them in prompts.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.media.feature_cache import FeatureCache
from tetrad.tokenizer_svc.media.images.families.family import Family
from tetrad.tokenizer_svc.media.images.families.model import BESIDE_OTHERS, ImageModel
from tetrad.tokenizer_svc.media.items import ImageFeature, ImageItem
from tetrad.tokenizer_svc.media.message_room import MessageRoom
from tetrad.tokenizer_svc.media.processes import ImageFailed, ImageProcesses
from tetrad.tokenizer_svc.media.shared_work import SharedWork
from tetrad.tokenizer_svc.observability.metrics import TokenizerMetrics

_KWARGS = "mm_processor_kwargs_json"


class ImagePreprocessor:
    """Preprocesses images for one model.

    Args:
        model: the facts of the model.
        family: the rules of its family.
        processes: run the image processor; owned by this object.
        cache: images that were seen.
        tokenizer_hash: digest of the tokenizer's files.
        max_images: maximum number of images of a prompt.
        max_message_bytes: maximum bytes of a prompt's images together.
        metrics: counts images.

    Attributes:
        max_images: as given.
        max_embeds: number of embeddings of the largest image.
        placeholder: text of an image in a prompt before it is expanded.
        message_text: text of an image in a message for templates that read only texts.
        mark, mark_id: text and id of the token that an embedding replaces.
    """

    def __init__(
        self,
        model: ImageModel,
        family: Family,
        processes: ImageProcesses,
        cache: FeatureCache,
        *,
        tokenizer_hash: str,
        max_images: int,
        max_message_bytes: int,
        metrics: TokenizerMetrics,
    ) -> None:
        self._model, self._family, self._processes, self._cache = model, family, processes, cache
        self._metrics, self._max_message_bytes = metrics, max_message_bytes
        self._running: SharedWork[ImageFeature] = SharedWork()
        settings = json.dumps([tokenizer_hash, model.settings], sort_keys=True)
        self._salt = hashlib.sha256(settings.encode()).digest()
        self.max_images = max_images
        self.max_embeds = family.max_embeds(model)
        self.placeholder, self.message_text = family.placeholder(model), family.message_text(model)
        self.mark, self.mark_id = model.mark, model.mark_id

    def kwargs(self, text: str) -> dict[str, Any]:
        """Return the processor's settings of a request. Raises InvalidRequest for others than the family takes."""
        if not text:
            return {}
        try:
            kwargs = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{_KWARGS} is not JSON: {error}.", field=_KWARGS) from error
        if not isinstance(kwargs, dict):
            raise InvalidRequest(f"{_KWARGS} is not a JSON object.", field=_KWARGS)
        if unknown := kwargs.keys() - set(self._family.kwargs):
            taken = ", ".join(self._family.kwargs) or "none"
            raise InvalidRequest(f"mm_processor_kwargs has {min(unknown)!r}; this model takes {taken}.", field=_KWARGS)
        return kwargs

    async def preprocess(self, items: Sequence[ImageItem], kwargs: Mapping[str, Any]) -> list[ImageFeature]:
        """Return the features of images in their order.

        Raises:
            InvalidRequest: an image cannot be read or processed, or is named by a uuid that is not known; or the features do
                not fit a message together.
        """
        if self._family.splits_single and len(items) > 1:
            kwargs = {**kwargs, BESIDE_OTHERS: True}
        settings = json.dumps(kwargs, sort_keys=True)
        room = MessageRoom(len(items), self._max_message_bytes)

        async def fitting(i: int, item: ImageItem) -> ImageFeature:
            feature = await self._feature(i, item, kwargs, settings)
            room.take(feature.image.size_bytes)
            return feature

        try:
            async with asyncio.TaskGroup() as group:
                works = [group.create_task(fitting(i, item)) for i, item in enumerate(items)]
        except ExceptionGroup as failed:  # the answer is the first error; the other images are left
            raise failed.exceptions[0] from None
        return [work.result() for work in works]

    async def _feature(self, i: int, item: ImageItem, kwargs: Mapping[str, Any], settings: str) -> ImageFeature:
        identifier = await asyncio.to_thread(self._identifier, item, settings)
        found = self._cache.get(identifier)
        self._metrics.count_lookup(is_hit=found is not None)
        if found is not None:
            return found
        if not item.data:
            raise InvalidRequest(f"Cache miss for image at index {i} but data is not provided.", field=f"media[{i}]")
        try:
            return await self._running.run(identifier, partial(self._make, identifier, item.data, kwargs))
        except ImageFailed as failed:
            kind = f" ({item.media_type})" if item.media_type else ""
            raise InvalidRequest(f"Failed to load image {i}{kind}: {str(failed).rstrip('.')}.", field=f"media[{i}]") from None

    async def _make(self, identifier: str, data: bytes, kwargs: Mapping[str, Any]) -> ImageFeature:
        """Return the feature of a file, and keep it. Raises ImageFailed."""
        started = time.perf_counter()
        image = await self._processes.process(data, kwargs)
        self._metrics.observe_image(time.perf_counter() - started)
        family, model = self._family, self._model
        feature = ImageFeature(identifier, image, family.expand(model, image), family.grid(model, image))
        num_embeds = feature.expansion.num_embeds
        if num_embeds > self.max_embeds:
            text = f"it becomes {num_embeds} embeddings; the limit is {self.max_embeds}, those of the largest image"
            raise ImageFailed(f"{text} with the model's own settings")
        self._cache.put(feature)
        return feature

    def reset_cache(self) -> None:
        """Drop the images that were seen; those being preprocessed are kept afterwards."""
        self._cache.reset()

    async def close(self) -> None:
        """Stop the processes."""
        await self._processes.close()

    def _identifier(self, item: ImageItem, settings: str) -> str:
        digest = hashlib.sha256(self._salt)
        digest.update(f"{len(settings)} {settings}".encode())
        digest.update(f"uuid {item.uuid}".encode() if item.uuid else b"data ")
        if not item.uuid:
            digest.update(item.data)
        return digest.hexdigest()
