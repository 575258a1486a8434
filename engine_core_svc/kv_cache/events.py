"""KV events: the changes of a prefix cache that subscribers receive.

The block pool and the cache manager are given one `KvEvents`; they call it and never ask. Knows requests' tokens and hashes,
nothing of listeners: who keeps and sends events is event_log.py.
"""

from typing import Protocol

from tetrad.engine_core_svc.core.request import Request


class KvEvents(Protocol):
    """What hears of the prefix cache. Called from within a step: must not wait."""

    def stored(self, request: Request, first: int, end: int) -> None:
        """Blocks `first` to `end` (exclusive) of a request are found by others from now on."""

    def removed(self, block_hash: bytes) -> None:
        """No block with this content is left."""

    def cleared(self) -> None:
        """Nothing is cached any more."""


class NoKvEvents:
    """Tells nobody."""

    def stored(self, request: Request, first: int, end: int) -> None:
        """Do nothing."""

    def removed(self, block_hash: bytes) -> None:
        """Do nothing."""

    def cleared(self) -> None:
        """Do nothing."""
