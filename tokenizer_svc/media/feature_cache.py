"""FeatureCache: keeps the items that were used last, within a number of bytes.

Used on the event loop. Knows identifiers and sizes; knows nothing of pixels or samples.
"""

from collections import OrderedDict

from tetrad.tokenizer_svc.media.items import MediaFeature


class FeatureCache:
    """Preprocessed items by identifier, in the order of their last use.

    Args:
        max_bytes: maximum bytes of all items; 0: none is kept.

    Attributes:
        num_bytes: bytes of the items that are kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._features: OrderedDict[str, MediaFeature] = OrderedDict()
        self.num_bytes = 0

    def get(self, identifier: str) -> MediaFeature | None:
        """Return an item, None if it is not kept."""
        feature = self._features.get(identifier)
        if feature is not None:
            self._features.move_to_end(identifier)
        return feature

    def reset(self) -> None:
        """Drop all items."""
        self._features.clear()
        self.num_bytes = 0

    def put(self, feature: MediaFeature) -> None:
        """Keep an item, in place of those whose last use is longest ago; one that is larger than all bytes is not kept."""
        if feature.size_bytes > self._max_bytes:
            return
        if (old := self._features.pop(feature.identifier, None)) is not None:
            self.num_bytes -= old.size_bytes
        self._features[feature.identifier] = feature
        self.num_bytes += feature.size_bytes
        while self.num_bytes > self._max_bytes:
            _, dropped = self._features.popitem(last=False)
            self.num_bytes -= dropped.size_bytes
