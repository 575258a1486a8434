"""FeatureCache: keeps the images that were used last, within a number of bytes.

Used on the event loop. Knows identifiers and sizes; knows nothing of pixels.
"""

from collections import OrderedDict

from tetrad.tokenizer_svc.media.items import ImageFeature


class FeatureCache:
    """Preprocessed images by identifier, in the order of their last use.

    Args:
        max_bytes: maximum bytes of all images; 0: none is kept.

    Attributes:
        num_bytes: bytes of the images that are kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._features: OrderedDict[str, ImageFeature] = OrderedDict()
        self.num_bytes = 0

    def get(self, identifier: str) -> ImageFeature | None:
        """Return an image, None if it is not kept."""
        feature = self._features.get(identifier)
        if feature is not None:
            self._features.move_to_end(identifier)
        return feature

    def reset(self) -> None:
        """Drop all images."""
        self._features.clear()
        self.num_bytes = 0

    def put(self, feature: ImageFeature) -> None:
        """Keep an image, in place of those whose last use is longest ago; one that is larger than all bytes is not kept."""
        if feature.size_bytes > self._max_bytes:
            return
        if (old := self._features.pop(feature.identifier, None)) is not None:
            self.num_bytes -= old.size_bytes
        self._features[feature.identifier] = feature
        self.num_bytes += feature.size_bytes
        while self.num_bytes > self._max_bytes:
            _, dropped = self._features.popitem(last=False)
            self.num_bytes -= dropped.size_bytes
