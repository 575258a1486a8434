"""NoCacheCoordinator: the coordinator without a KV group. An encoder computes a prompt in one step and keeps nothing of it.

See Coordinator.
"""

from collections.abc import Sequence

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.kv_cache.coordinator import NewBlocks, Prefix

_NO_PREFIX = Prefix(0, (), ())


class NoCacheCoordinator:
    """The coordinator of encoders; see Coordinator. Requests have no block tables, and there is always room."""

    num_groups = 0
    num_passed = 0

    def find_prefix(self, block_hashes: Sequence[bytes]) -> Prefix:  # noqa: ARG002 - of the protocol
        """Return the empty prefix."""
        return _NO_PREFIX

    def blocks_for(self, num_tokens: int, num_computed_tokens: int = 0) -> int:  # noqa: ARG002 - of the protocol
        """Return 0."""
        return 0

    def extend(self, request: Request, end: int) -> NewBlocks | None:  # noqa: ARG002 - of the protocol
        """Return no blocks."""
        return ()

    extend_ahead = extend

    def register(self, request: Request, first: int, end: int) -> Sequence[bytes]:  # noqa: ARG002 - of the protocol
        """Return no keys."""
        return ()

    def blocks_of(self, request: Request) -> Sequence[int]:  # noqa: ARG002 - of the protocol
        """Return no blocks."""
        return ()

    def note_sent(self) -> None:
        """Do nothing."""

    def keys_of(self, block_hash: bytes) -> Sequence[bytes]:  # noqa: ARG002 - of the protocol
        """Return no keys."""
        return ()
