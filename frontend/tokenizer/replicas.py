"""TokenizerReplicas: the tokenizers of one model, their health, and the order in which they are called.

It watches connections rather than polling. A replica is used when it is connected and has the same tokenizer as the first one
that answered: texts of one and ids of another would not match. Knows no requests.
"""

import asyncio
import time
from collections.abc import Callable

import grpc

from tetrad.frontend.engine.facts import TokenizerInfo
from tetrad.frontend.engine.wire import decode_tokenizer_info
from tetrad.frontend.net.backoff import Backoff
from tetrad.frontend.net.discovery import Discovery, Endpoint
from tetrad.frontend.tokenizer.client_stream import BatchStream
from tetrad.frontend.tokenizer.link import TokenizerLink
from tetrad.services.errors import Unavailable
from tetrad.services.log import get_logger

log = get_logger()

_INFO_TIMEOUT_S = 5.0


class Replica:
    """One tokenizer.

    Attributes:
        link: to it.
        batches: for many calls together.
        usable: whether it is connected and known to be the right one.
        num_connections: how often it became usable.
        suspect: it failed a call or left one unanswered, and has answered none since: others are asked first.
        problem: why it is not usable, in words for people outside; empty if it is.
        since: wall clock in seconds at which it became usable or ceased to be.
        info: what it said of itself last; None before it did.
        is_gone: its name no longer stands for it; it is let go when it is lost.
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

    async def close(self) -> None:
        """End the connection, and what is under way on it."""
        await self.batches.close()
        await self.link.close()


Connection = tuple[Replica, int]
"""A replica, and which of its connections this is: one that broke says nothing of the next."""


class TokenizerReplicas:
    """All tokenizers.

    Args:
        discovery: finds them; owned from now on.
        connect: makes the link to one of them.
        on_change: called whenever a replica becomes usable or ceases to be.
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
        """Whether any replica is."""
        return self._any_usable.is_set()

    def start(self) -> None:
        """Begin to connect."""
        for replica in self.replicas:
            self._start_watching(replica)
        self._discovery.start(self._take_round)

    async def wait_usable(self) -> None:
        """Wait until a replica is; Unavailable when all connections are closed."""
        await self._any_usable.wait()
        if self._is_closed:
            raise Unavailable("The tokenizers are not connected any more: the model was unloaded, or this server shuts down.")

    def in_order(self) -> list[Replica]:
        """Return the usable replicas, the one to ask first in front: in turn, the suspects last."""
        self._turn = (self._turn + 1) % max(1, len(self.replicas))
        order = self.replicas[self._turn :] + self.replicas[: self._turn]
        return sorted((replica for replica in order if replica.usable), key=lambda replica: replica.suspect)

    async def close(self) -> None:
        """End all connections; calls that are under way fail with Unavailable."""
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
        """Apply a discovery: new replicas join; missing ones are closed when their connection is lost."""
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
                # AttributeError, ValueError: an answer that cannot be read.
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
