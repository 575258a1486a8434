"""KvEventsClient: updates the prefix memory of one engine core from its KV events.

A broken subscription continues at the last event; the engine core sends a snapshot if that is impossible, and after invalid
events. Requests do not depend on it: without events, for example without an admin port, the memory has only the prompts that
this frontend routed. One event loop.
"""

import asyncio
import time
from collections.abc import AsyncIterable

import grpc

from tetrad.frontend.net.backoff import Backoff
from tetrad.frontend.routing.block_keys import salt_of
from tetrad.frontend.routing.prefix_memory import PrefixMemory
from tetrad.services.log import get_logger
from tetrad.v1 import engine_core_pb2, engine_core_pb2_grpc

log = get_logger()

_INFO_TIMEOUT_S = 30.0
_WRONG_AFTER_S = 10.0
"""Seconds: the successor of an engine core answers at its admin port before its session is open."""
_Batch = engine_core_pb2.SubscribeKvEventsResponse


class KvEventsClient:
    """The subscription to one engine core.

    Args:
        target: address of its admin port, for logs.
        channel: channel to the admin port; the client owns and closes it.
        prefixes: the memory to update.
    """

    def __init__(self, target: str, channel: grpc.aio.Channel, prefixes: PrefixMemory) -> None:
        self._target = target
        self._channel = channel
        self._stub = engine_core_pb2_grpc.EngineCoreAdminServiceStub(channel)
        self._prefixes = prefixes
        self._task: asyncio.Task[None] | None = None
        self._resume_at = 0  # number of the next event; 0: start with a snapshot
        self._said_wrong = False
        self._wrong_since: float | None = None  # monotonic seconds; None: no other engine core answers

    def follow(self, epoch: int) -> None:
        """Subscribe to the engine core of this epoch, starting with a snapshot."""
        if self._task is not None:
            self._task.cancel()
        self._resume_at, self._wrong_since = 0, None
        self._task = asyncio.create_task(self._run(epoch), name=f"kv events {self._target}")

    async def close(self) -> None:
        """End the subscription and close the channel."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close()

    async def _run(self, epoch: int) -> None:
        backoff = Backoff()
        while True:
            try:
                if await self._is_of(epoch):
                    await self._listen(backoff)
            except grpc.aio.AioRpcError as error:
                log.debug("kv_events.lost", target=self._target, reason=error.details())
                if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    return
            except Exception as error:  # without this task the memory would miss evictions
                log.warning("kv_events.failed", target=self._target, reason=repr(error), exc_info=True)
                self._resume_at = 0
            await backoff.wait()

    async def _is_of(self, epoch: int) -> bool:
        """Return whether the port belongs to the engine core of this epoch: events of another one would misroute requests."""
        request = engine_core_pb2.EngineCoreAdminServiceGetInfoRequest()
        answer = await self._stub.GetInfo(request, wait_for_ready=True, timeout=_INFO_TIMEOUT_S)
        if answer.info.epoch == epoch:
            self._wrong_since = None
            return True
        now = time.monotonic()
        self._wrong_since = self._wrong_since or now
        if not self._said_wrong and now - self._wrong_since >= _WRONG_AFTER_S:
            self._said_wrong = True
            text = "the admin port of another engine core; engine-admin-targets go in the order of engine-targets"
            log.warning("kv_events.wrong_engine", target=self._target, reason=text)
        return False

    async def _listen(self, backoff: Backoff) -> None:
        request = engine_core_pb2.SubscribeKvEventsRequest(start_sequence_number=self._resume_at)
        call = self._stub.SubscribeKvEvents(request)
        try:
            await self._take_all(call, backoff)
        finally:
            call.cancel()

    async def _take_all(self, batches: AsyncIterable[_Batch | None], backoff: Backoff) -> None:
        """Apply batches until the stream ends. After an invalid batch stop; the next subscription starts with a snapshot."""
        expected = self._resume_at
        async for batch in batches:
            if batch is None:
                log.warning("kv_events.undecodable", target=self._target, expected=expected)
                self._resume_at = 0
                return
            if not batch.snapshot and batch.sequence_number != expected:
                log.warning("kv_events.gap", target=self._target, expected=expected, got=batch.sequence_number)
                self._resume_at = 0
                return
            expected = batch.sequence_number + 1
            # All messages of a snapshot have the same number, and none is marked as the last: the next batch shows its end.
            self._resume_at = 0 if batch.snapshot else expected
            for event in batch.events:
                self._take(event, is_new=not batch.snapshot)
            # A snapshot is no sign of a working stream: it always arrives, even if every later batch fails.
            if not batch.snapshot:
                backoff.reset()

    def _take(self, event: engine_core_pb2.KvCacheEvent, *, is_new: bool) -> None:
        kind = event.WhichOneof("event")
        if kind == "stored" and event.stored.block_size == self._prefixes.block_size:
            stored = event.stored
            parent = stored.parent_block_hash if stored.HasField("parent_block_hash") else None
            salt = salt_of(stored.cache_salt, stored.lora_name)
            self._prefixes.store(
                stored.block_hashes, parent, stored.token_ids, salt, extra_keys=stored.extra_keys, is_new=is_new
            )
        elif kind == "removed":
            self._prefixes.remove(event.removed.block_hashes)
        elif kind == "cleared":
            self._prefixes.clear()
