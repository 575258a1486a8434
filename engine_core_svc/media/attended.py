"""AttendedMedia: the media of a model with an encoder and a decoder, whose tokens all attend to the request's item.

The item has no place among the tokens. A request computes its first token when the item is encoded, and holds a reference to it
as long as it runs: every step reads it. Requests with the same item share it. The number of items that the encoder cache has
room for therefore limits how many different ones run together (worker/encoder_room.py).
"""

from tetrad.engine_core_svc.core.media import MediaSpan
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.media.planning import Media


class AttendedMedia(Media):
    """See Media; each request has one item."""

    def start(self, request: Request) -> None:
        """Take references to the items of a request that runs from now on."""
        for span in request.payload.media:
            entry = self.cache.find(span)
            if entry is not None:
                self.cache.use(entry, request.key)

    def most_tokens(self, request: Request, start: int, num_tokens: int) -> int:  # noqa: ARG002 - as in Media
        """Return `num_tokens` if a request's items are encoded, else 0; ask for those that are missing."""
        are_ready = [self._is_ready(request, span) for span in request.payload.media]
        return num_tokens if all(are_ready) else 0

    def advance(self, request: Request, start: int, num_tokens: int) -> None:
        """Do nothing: later plans read the items, too."""

    def _is_ready(self, request: Request, span: MediaSpan) -> bool:
        self._wanted.add(span.identifier)
        entry = self._look_for(request, span)
        if entry is None:
            self._is_full = True
            return False
        if request.status is RequestStatus.RUNNING:
            self.cache.use(entry, request.key)
        if not entry.is_ready:
            entry.waiting.add(request.key)
        return entry.is_ready
