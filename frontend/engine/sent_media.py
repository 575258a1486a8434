"""SentMedia: tracks the tensors of images that a session has sent, so that further requests with the same images omit them.

Used by the queue of an engine core's requests. The engine core keeps the tensors of an item while any unfinished request has
it, and messages keep their order: a request may rely on an unfinished one that was sent before it. If that one has ended when
the message arrives, the engine core rejects the request with MM_CACHE_MISS, and it is sent again with its tensors.
"""

from tetrad.frontend.engine.client_sequence import ActiveSequence
from tetrad.frontend.media.features import MediaFeature

MM_CACHE_MISS = "MM_CACHE_MISS"
"""Reason of the engine core's rejection of a request whose tensors it lacks."""


class SentMedia:
    """The tensors sent in one session."""

    def __init__(self) -> None:
        self._senders: dict[str, str] = {}  # identifier -> the unfinished request that was last sent with its tensors
        self._sent: dict[str, set[str]] = {}  # unfinished request -> identifiers of the tensors that it was sent with
        self._missed: set[str] = set()  # requests that relied on another one in vain

    def clear(self) -> None:
        """Forget everything: a new session begins, perhaps with another engine core."""
        self._senders.clear()
        self._sent.clear()
        self._missed.clear()

    def choose(self, active: ActiveSequence) -> tuple[MediaFeature, ...]:
        """Return the features of a request as they should be sent: without the tensors that the engine core has by then."""
        relies = active.sequence.request_id not in self._missed
        own: set[str] = set()
        chosen: list[MediaFeature] = []
        for feature, bare in zip(active.features, active.bare_features, strict=True):
            is_known = feature.identifier in own or (relies and feature.identifier in self._senders)
            chosen.append(bare if is_known else feature)
            if not is_known:
                own.add(feature.identifier)
        return tuple(chosen)

    def note_sent(self, active: ActiveSequence, chosen: tuple[MediaFeature, ...]) -> None:
        """Record that a request is sent with these features, which `choose` returned."""
        if active.sequence.finished:
            return  # aborted meanwhile; its abort follows its message, and nothing may rely on it
        request_id = active.sequence.request_id
        own = {feature.identifier for feature, whole in zip(chosen, active.features, strict=True) if feature is whole}
        self._sent[request_id] = own
        self._senders.update(dict.fromkeys(own, request_id))

    def note_miss(self, active: ActiveSequence) -> bool:
        """Record that the engine core lacked tensors of a request; return False if the request was sent with all of them."""
        request_id = active.sequence.request_id
        own = self._sent.get(request_id)
        if own is None or own.issuperset(feature.identifier for feature in active.features):
            return False
        self.forget(active)
        self._missed.add(request_id)
        return True

    def forget(self, active: ActiveSequence) -> None:
        """Remove a request that has ended or moved to another engine core."""
        request_id = active.sequence.request_id
        self._missed.discard(request_id)
        for identifier in self._sent.pop(request_id, ()):
            if self._senders.get(identifier) == request_id:
                del self._senders[identifier]
