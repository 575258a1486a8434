"""MediaStore: the encoder inputs of all unfinished requests, each once.

Called when a request is admitted and when it has ended. A request needs its inputs until its end: a preempted request, and
every request after the loss of a worker, may have to be encoded again. Knows bytes and identifiers, not encoding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tetrad.engine_core_svc.core.media import EncoderInput, MediaSpan
from tetrad.services.errors import InvalidRequest, Overloaded, Unavailable

_RETRY_S = 1.0
_FIELD = "mm_features"


@dataclass(slots=True)
class _Item:
    span: MediaSpan
    encoder_input: EncoderInput
    num_requests: int = 0


class MediaStore:
    """The encoder inputs, by identifier.

    Args:
        max_bytes: maximum bytes of all inputs together.

    Attributes:
        num_bytes: bytes of the stored inputs.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._items: dict[str, _Item] = {}
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def check(self, spans: Sequence[MediaSpan], inputs: Mapping[str, EncoderInput]) -> None:
        """Check that a request's items can be stored.

        Args:
            spans: the items of the request.
            inputs: inputs by identifier; those that the store has may be missing.

        Raises:
            Unavailable: the input of an item is missing.
            InvalidRequest: an identifier stands for two different items, or the request alone exceeds the limit.
            Overloaded: the inputs of all unfinished requests would exceed the limit.
        """
        new: dict[str, MediaSpan] = {}
        for span in spans:
            item = self._items.get(span.identifier)
            known = item.span if item is not None else new.setdefault(span.identifier, span)
            if _content(known) != _content(span):
                text = f"Identifier {span.identifier!r} stands for two different items: {_named(known)} and {_named(span)}."
                raise InvalidRequest(text, field=_FIELD)
            if item is None and span.identifier not in inputs:
                named = f"{span.modality} {span.identifier!r}"
                text = f"Multi-modal cache miss: no unfinished request has {named}; send its tensors."
                raise Unavailable(text, reason="MM_CACHE_MISS")
        own_bytes = sum(self._input_of(name, inputs).size_bytes for name in {span.identifier for span in spans})
        if own_bytes > self._max_bytes:
            text = f"The media of this request have {own_bytes} bytes; the limit is {self._max_bytes} (max_total_media_bytes)."
            raise InvalidRequest(text, field=_FIELD, reason="MEDIA_TOO_LARGE")
        new_bytes = sum(inputs[name].size_bytes for name in new)
        if self.num_bytes + new_bytes > self._max_bytes:
            raise Overloaded(
                f"The media of all unfinished requests have {self.num_bytes} bytes; {new_bytes} more exceed the limit of "
                f"{self._max_bytes} (max_total_media_bytes).",
                retry_after_s=_RETRY_S,
            )

    def hold(self, spans: Sequence[MediaSpan], inputs: Mapping[str, EncoderInput]) -> None:
        """Store the items of a request that `check` has accepted, until `release`."""
        for identifier, span in {span.identifier: span for span in spans}.items():
            item = self._items.get(identifier)
            if item is None:
                item = self._items[identifier] = _Item(span, inputs[identifier])
                self.num_bytes += item.encoder_input.size_bytes
            item.num_requests += 1

    def release(self, spans: Sequence[MediaSpan]) -> None:
        """Forget the items of a request that has ended, unless other requests have them."""
        for identifier in {span.identifier for span in spans}:
            item = self._items[identifier]
            item.num_requests -= 1
            if not item.num_requests:
                del self._items[identifier]
                self.num_bytes -= item.encoder_input.size_bytes

    def input_of(self, identifier: str) -> EncoderInput:
        """Return the input of a stored item."""
        return self._items[identifier].encoder_input

    def _input_of(self, identifier: str, inputs: Mapping[str, EncoderInput]) -> EncoderInput:
        item = self._items.get(identifier)
        return inputs[identifier] if item is None else item.encoder_input


def _content(span: MediaSpan) -> tuple[object, ...]:
    """Return the properties that all spans of an item have in common."""
    return span.modality, span.content_hash, span.num_embeds, span.grid


def _named(span: MediaSpan) -> str:
    return f"{span.modality} {span.content_hash!r} of {span.num_embeds} embeddings"
