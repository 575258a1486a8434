"""TokenizerReplicas: keeps the tokenizers of one model, their health, and the order in which they are called.

It watches connections instead of polling. A replica is usable if it is connected and has the same tokenizer as the first one
that answered: texts of one tokenizer would not match the ids of another. Knows no requests.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from hashlib import blake2b

import grpc

from tetrad.frontend.engine.facts import TokenizerInfo
from tetrad.frontend.engine.facts_wire import decode_tokenizer_info
from tetrad.frontend.net.backoff import Backoff
from tetrad.frontend.net.discovery import Discovery, Endpoint
from tetrad.frontend.tokenizer.client_stream import BatchStream
from tetrad.frontend.tokenizer.link import TokenizerLink
from tetrad.services.errors import Unavailable
from tetrad.services.log import get_logger
from tetrad.services.rpc.status import from_rpc_error

log = get_logger()

_INFO_TIMEOUT_S = 5.0
_RESET_TIMEOUT_S = 10.0


class Replica:
    """One tokenizer.

    Attributes:
        link: link to the tokenizer.
        batches: its Batch stream.
        usable: whether it is connected and has the right tokenizer.
        num_connections: how often it has become usable.
        suspect: whether its last call failed or was not answered; other replicas are called first.
        problem: why it is not usable, for operators and clients; empty if it is usable.
        since: time of the last change of `usable`, in seconds of the wall clock.
        info: its latest facts; None before the first answer.
        is_gone: whether discovery no longer finds it; it is removed when its connection is lost.
    """

    def __init__(self, endpoint: Endpoint, link: TokenizerLink) -> None:
        self.endpoint = endpoint
        self.target = endpoint.target
        self.is_gone = False
        self.link = link
        self.batches = BatchStream(link)
        self.usable = False
        self.num_connections = 0
        self.suspect = False
        self.problem = "not connected"
        self.since = time.time()
        self.info: TokenizerInfo | None = None

    def rank_for(self, affinity: bytes) -> bytes:
        """Return the sort key of this replica for calls with an affinity; it depends on the address alone."""
        return blake2b(affinity + self.target.encode(), digest_size=8).digest()

    async def close(self) -> None:
        """Close the connection and end its calls."""
        await self.batches.close()
        await self.link.close()


Connection = tuple[Replica, int]
"""A replica and the number of its connection: a broken connection is no evidence against the next one."""


class TokenizerReplicas:
    """All tokenizers of one model.

    Args:
        discovery: finds the tokenizers; owned and closed by this object.
        connect: makes the link to an endpoint.
        on_change: called when a replica becomes usable or unusable.
    """

    def __init__(
        self,
        discovery: Discovery,
        connect: Callable[[Endpoint], TokenizerLink],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.replicas = [Replica(endpoint, connect(endpoint)) for endpoint in discovery.endpoints]
        self._discovery = discovery
        self._connect = connect
        self.info: TokenizerInfo | None = None
        self.num_losses = 0
        self._on_change = on_change
        self._any_usable = asyncio.Event()
        self._is_closed = False
        self._turn = 0
        self._tasks: dict[Replica, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __str__(self) -> str:
        return str(self._discovery)

    @property
    def usable(self) -> bool:
        """Whether any replica is usable."""
        return self._any_usable.is_set()

    def start(self) -> None:
        """Start to connect."""
        for replica in self.replicas:
            self._start_watching(replica)
        self._discovery.start(self._take_round)

    async def wait_usable(self) -> None:
        """Wait until any replica is usable; Unavailable when all connections are closed."""
        await self._any_usable.wait()
        if self._is_closed:
            raise Unavailable("The tokenizers are not connected any more: the model was unloaded, or this server shuts down.")

    def in_order(self, affinity: bytes = b"") -> list[Replica]:
        """Return the usable replicas in the order to call them: suspects last, each of the others first in turn.

        Args:
            affinity: calls with the same value go to the same replica, which keeps what it has preprocessed. Empty: to any.
        """
        if affinity:
            # Rendezvous hashing: all frontends choose alike, and a lost replica changes the place of its own calls only.
            return sorted(
                (replica for replica in self.replicas if replica.usable),
                key=lambda replica: (replica.suspect, replica.rank_for(affinity)),
            )
        self._turn = (self._turn + 1) % max(1, len(self.replicas))
        order = self.replicas[self._turn :] + self.replicas[: self._turn]
        return sorted((replica for replica in order if replica.usable), key=lambda replica: replica.suspect)

    async def reset_media_caches(self) -> None:
        """Let every tokenizer forget its preprocessed images; raise the first error, after all have been called."""
        calls = [_answered(replica.link.reset_media_cache(timeout_s=_RESET_TIMEOUT_S)) for replica in self.replicas]
        failures = [each for each in await asyncio.gather(*calls, return_exceptions=True) if each is not None]
        if failures:
            raise failures[0]

    async def close(self) -> None:
        """Close all connections; calls in progress fail with Unavailable."""
        await self._discovery.close()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), *self._closing, return_exceptions=True)
        self._is_closed = True
        for replica in self.replicas:
            replica.usable = False
        self._any_usable.set()
        for replica in self.replicas:
            await replica.close()

    def _take_round(self, endpoints: list[Endpoint]) -> None:
        """Apply the result of a discovery: add new replicas; missing ones are closed when their connection is lost."""
        known, present = {replica.endpoint for replica in self.replicas}, set(endpoints)
        for endpoint in endpoints:
            if endpoint not in known:
                replica = Replica(endpoint, self._connect(endpoint))
                self.replicas.append(replica)
                self._start_watching(replica)
        for replica in list(self.replicas):
            replica.is_gone = replica.endpoint not in present
            if replica.is_gone and not replica.usable:
                self._let_go(replica)
        self._on_change()

    def _start_watching(self, replica: Replica) -> None:
        self._tasks[replica] = asyncio.create_task(self._watch(replica), name=f"tokenizer {replica.target}")

    def _let_go(self, replica: Replica) -> None:
        log.info("tokenizer.let_go", target=replica.target)
        self.replicas.remove(replica)
        self._tasks.pop(replica).cancel()
        closing = asyncio.create_task(replica.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _watch(self, replica: Replica) -> None:
        backoff = Backoff()
        while True:
            await replica.link.wait_connected()
            try:
                response = await replica.link.get_info(timeout_s=_INFO_TIMEOUT_S)
                info = decode_tokenizer_info(response)
            except (grpc.aio.AioRpcError, AttributeError, ValueError) as error:
                # AttributeError, ValueError: an invalid answer.
                log.debug("tokenizer.no_answer", target=replica.target, reason=str(error))
                await backoff.wait()
                continue
            backoff.reset()
            self._judge(replica, info)
            await replica.link.wait_lost()
            self._set_usable(replica, "not connected")

    def _judge(self, replica: Replica, info: TokenizerInfo) -> None:
        replica.info = info
        if self.info is None:
            self.info = info
        if info.tokenizer_hash == self.info.tokenizer_hash:
            log.info("tokenizer.connected", target=replica.target)
            self._set_usable(replica, "")
            return
        log.error(
            "tokenizer.refused",
            target=replica.target,
            reason="another tokenizer than the one this frontend started with; restart the frontend if this one is right",
            tokenizer_hash=info.tokenizer_hash,
            expected_hash=self.info.tokenizer_hash,
        )
        self._set_usable(replica, "another tokenizer than the one this frontend started with")

    def _set_usable(self, replica: Replica, problem: str) -> None:
        if replica.usable and problem:
            log.warning("tokenizer.lost", target=replica.target)
            self.num_losses += 1
            self._discovery.look_again()
        replica.usable, replica.problem, replica.suspect = not problem, problem, False
        replica.num_connections += replica.usable
        replica.since = time.time()
        if any(each.usable for each in self.replicas):
            self._any_usable.set()
        else:
            self._any_usable.clear()
        self._on_change()


async def _answered(call: Awaitable[object]) -> None:
    """Wait for the answer of a tokenizer; raise its error."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
