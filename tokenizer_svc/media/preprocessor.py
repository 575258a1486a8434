"""Preprocessor: turns items of one modality into features: identifiers, the cache, processes, the model's rules.

Called on the event loop. `expansion.py` places the features in prompts.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.media.embeds import EMBEDS
from tetrad.tokenizer_svc.media.feature_cache import FeatureCache
from tetrad.tokenizer_svc.media.items import MediaError, MediaFeature, MediaInput
from tetrad.tokenizer_svc.media.kinds import MediaRules
from tetrad.tokenizer_svc.media.processes import MediaProcesses
from tetrad.tokenizer_svc.media.shared_work import SharedWork
from tetrad.tokenizer_svc.observability.metrics import TokenizerMetrics


class Preprocessor:
    """Preprocesses items of one modality for one model.

    Args:
        rules: the rules of the model.
        processes: run the processor; owned by this object.
        cache: items that were seen.
        kwargs: settings of the processor that a request may change.
        io_kwargs: settings of reading a file that a request may change.
        tokenizer_hash: digest of the tokenizer's files.
        max_items: maximum number of items of a prompt.
        metrics: counts items.

    Attributes:
        rules, kwargs, io_kwargs, max_items: as given.
    """

    def __init__(
        self,
        rules: MediaRules,
        processes: MediaProcesses,
        cache: FeatureCache,
        *,
        kwargs: tuple[str, ...],
        io_kwargs: tuple[str, ...] = (),
        tokenizer_hash: str,
        max_items: int,
        metrics: TokenizerMetrics,
    ) -> None:
        self.rules, self.kwargs, self.io_kwargs, self.max_items = rules, kwargs, io_kwargs, max_items
        self._processes, self._cache, self._metrics = processes, cache, metrics
        self._running: SharedWork[MediaFeature] = SharedWork()
        settings = json.dumps([rules.modality, tokenizer_hash, rules.settings], sort_keys=True)
        self._salt = hashlib.sha256(settings.encode()).digest()

    async def feature(self, item: MediaInput, kwargs: Mapping[str, Any], *, index: int, field: str) -> MediaFeature:
        """Return the feature of an item.

        Args:
            item: of this modality.
            kwargs: settings of the processor.
            index: number of the item among those of its modality, for errors.
            field: the request's field with the item, for errors.

        Raises:
            InvalidRequest: the item cannot be read or processed, or is named by a uuid that is not known.
        """
        if item.is_embeds:
            kwargs = self._embeds_settings(field)
        identifier = await asyncio.to_thread(self._identifier, item, json.dumps(kwargs, sort_keys=True))
        found = self._cache.get(identifier)
        self._metrics.count_lookup(is_hit=found is not None)
        if found is not None:
            return found
        if not item.data:
            text = f"Cache miss for {item.modality} at index {index} but data is not provided."
            raise InvalidRequest(text, field=field)
        try:
            return await self._running.run(identifier, partial(self._make, identifier, item.data, kwargs))
        except MediaError as failed:
            kind = f" ({item.media_type})" if item.media_type else ""
            text = f"Failed to load {item.modality} {index}{kind}: {str(failed).rstrip('.')}."
            raise InvalidRequest(text, field=field) from None

    async def _make(self, identifier: str, data: bytes, kwargs: Mapping[str, Any]) -> MediaFeature:
        """Return the feature of a file, and keep it. Raises MediaError."""
        started = time.perf_counter()
        item = await self._processes.process(data, kwargs)
        self._metrics.observe_item(time.perf_counter() - started)
        rules = self.rules
        expand = rules.embeds.expansion if rules.embeds and EMBEDS in kwargs else rules.expand
        feature = MediaFeature(rules.modality, identifier, item, expand(item), rules.grid(item), rules.time_step(item))
        num_embeds = feature.expansion.num_embeds
        if num_embeds > rules.max_embeds:
            text = f"it becomes {num_embeds} embeddings; the limit is {rules.max_embeds}, those of the largest {rules.modality}"
            raise MediaError(f"{text} with the model's own settings")
        self._cache.put(feature)
        return feature

    def reset_cache(self) -> None:
        """Drop the items that were seen; those being preprocessed are kept afterwards."""
        self._cache.reset()

    async def close(self) -> None:
        """Stop the processes."""
        await self._processes.close()

    def _embeds_settings(self, field: str) -> Mapping[str, Any]:
        if self.rules.embeds is None:
            name = self.rules.modality
            raise InvalidRequest(f"This model takes no {name} embeddings: send the {name}.", field=field)
        return self.rules.embeds.settings()

    def _identifier(self, item: MediaInput, settings: str) -> str:
        digest = hashlib.sha256(self._salt)
        digest.update(f"{len(settings)} {settings}".encode())
        digest.update(f"uuid {item.uuid}".encode() if item.uuid else b"data ")
        if not item.uuid:
            digest.update(item.data)
        return digest.hexdigest()
