"""Block exchange: the leases of the open Execute stream, and the copies of blocks between the cache and other workers.

Called on the event loop and on the transfer thread; the compute thread opens and closes it with the streams. One lock is held
for each copy of a few blocks, so after `close` no copy of the ended stream reads or writes the cache, whose blocks the next
stream gives to other requests. Invariant: a lease that is read to its end was in force during every copy.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tetrad.services.errors import FailedPrecondition, NotFound
from tetrad.worker_svc.core.kv_transfer import BlockContents, KvLease, KvTransferEvents
from tetrad.worker_svc.core.plan import Ints


@dataclass(slots=True, eq=False)
class _Held:
    """A lease in force: until its time `ends_at` is over or it is read, and nobody reads it any more."""

    lease: KvLease
    ends_at: float
    num_readers: int = 0
    is_read: bool = False


class BlockExchange:
    """The blocks of one worker that other workers read, and those that it fetches.

    Args:
        clock: returns monotonic seconds.

    Attributes:
        on_read: called when a read has ended, so that the stream reports its lease.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._contents: BlockContents | None = None
        self._stream_id: int | None = None
        self._leases: dict[int, _Held] = {}
        self.on_read: Callable[[], None] = _do_nothing

    def open(self, stream_id: int, contents: BlockContents | None) -> None:
        """Serve the transfers of a stream; None: the blocks of this cache cannot be read."""
        with self._lock:
            self._stream_id, self._contents, self._leases = stream_id, contents, {}

    def close(self) -> None:
        """End all leases and transfers; afterwards nothing reads or writes the blocks."""
        with self._lock:
            self._stream_id, self._contents, self._leases = None, None, {}

    @property
    def block_bytes(self) -> int:
        """The bytes of a block; 0: there are no transfers."""
        contents = self._contents
        return 0 if contents is None else contents.block_bytes

    # --- leases -----------------------------------------------------------------------------------------------------

    def hold(self, stream_id: int, leases: Iterable[KvLease]) -> None:
        """Put leases in force. Does nothing if the stream has ended."""
        with self._lock:
            if stream_id == self._stream_id:
                now = self._clock()
                self._leases.update({each.lease_id: _Held(each, now + each.ttl_s) for each in leases})

    def has(self, lease_id: int) -> bool:
        """Return whether a lease is in force."""
        return lease_id in self._leases

    def enter(self, lease_id: int, first: int, num_blocks: int, last_hash: bytes) -> None:
        """Begin to read blocks of a lease; `leave` must follow.

        Raises NotFound if there is no such lease; FailedPrecondition if its blocks have other content.
        """
        with self._lock:
            held = self._held(lease_id)
            end, hashes = first + num_blocks, held.lease.hashes
            if num_blocks and (end > len(hashes) or hashes[end - 1] != last_hash):
                raise FailedPrecondition(
                    f"Blocks {first} to {end - 1} of lease {lease_id}, which has {len(hashes)}, do not have the content of the "
                    "reader's prompt."
                )
            held.num_readers += 1

    def read(self, lease_id: int, first: int, num_blocks: int) -> bytes:
        """Return the content of some blocks of a lease. Raises NotFound if the lease has ended."""
        with self._lock:
            held = self._held(lease_id)
            assert self._contents is not None, "a lease is in force only while the exchange is open"
            return self._contents.read(held.lease.blocks[first : first + num_blocks])

    def leave(self, lease_id: int, *, is_read: bool) -> None:
        """End a read, or give a lease back. Raises NotFound if the lease has ended before: what was read is not valid."""
        with self._lock:
            held = self._held(lease_id)
            held.num_readers -= 1
            held.is_read |= is_read
            held.ends_at = self._clock() + held.lease.ttl_s
        self.on_read()

    def take_ended(self, stream_id: int) -> KvTransferEvents:
        """Return the leases that have ended since the last call: those that were read, and those whose time is over."""
        with self._lock:
            if stream_id != self._stream_id:
                return KvTransferEvents()
            now, block_bytes = self._clock(), self.block_bytes
            ended = [each for each in self._leases.values() if not each.num_readers and (each.is_read or each.ends_at <= now)]
            for each in ended:
                del self._leases[each.lease.lease_id]
            return KvTransferEvents(
                sent=[each.lease.transfer_id for each in ended if each.is_read],
                expired=[each.lease.transfer_id for each in ended if not each.is_read],
                bytes_moved=sum(len(each.lease.blocks) * block_bytes for each in ended if each.is_read),
            )

    def _held(self, lease_id: int) -> _Held:
        held = self._leases.get(lease_id)
        if held is None:
            raise NotFound(f"There is no lease {lease_id}: its blocks were read, its time is over, or its stream ended.")
        return held

    # --- received blocks --------------------------------------------------------------------------------------------

    def write(self, stream_id: int, blocks: Ints, content: bytes) -> None:
        """Overwrite blocks with fetched content.

        Raises NotFound if the stream has ended; FailedPrecondition if the content has another size.
        """
        with self._lock:
            if stream_id != self._stream_id or self._contents is None:
                raise NotFound("The Execute stream of this transfer has ended.")
            wanted = len(blocks) * self._contents.block_bytes
            if len(content) != wanted:
                raise FailedPrecondition(f"{len(blocks)} blocks have {wanted} bytes here, but {len(content)} were sent.")
            self._contents.write(blocks, content)


def _do_nothing() -> None:
    """Do nothing: no stream has transfers."""
