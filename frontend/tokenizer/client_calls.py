"""TokenizerCalls: answers a call by any tokenizer replica, and repeats it after a failure.

Small calls share messages (client_batches.py). Calls have no side effects, so a broken call is repeated at once on another
replica, and a slow light call is sent to a second one; a heavy call is not, since it would occupy two tokenizers with the same
work. Failed calls are repeated until `recovery_timeout_s` is over. That time does not count for images while their tokenizer is
alive: many others may wait before them. A text may crash tokenizers: calls during which two were lost are repeated one at a
time, and a call during which three were lost fails.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from tetrad.frontend.net.backoff import Backoff
from tetrad.frontend.tokenizer.client_batches import TokenizerBatches, goes_together, has_media
from tetrad.frontend.tokenizer.media_wire import names_missing_image
from tetrad.frontend.tokenizer.replicas import Connection, Replica, TokenizerReplicas
from tetrad.services.errors import InvalidRequest, PoisonousRequest, Unavailable
from tetrad.services.message_size import too_large
from tetrad.services.request_context import current_context
from tetrad.services.rpc.channel import is_call_closed
from tetrad.services.rpc.status import from_rpc_error, has_details
from tetrad.services.timers.running_time import RunningLimit, running_timeout
from tetrad.v1 import tokenizer_pb2

_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_BROKEN = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
# The result of a call that the replica refused without trying it.
_REFUSED = object()
_LOSSES_TO_BE_ALONE, _MOST_LOSSES = 2, 3
_CONTENTS = {"Encode": "Text to tokenize", "Decode": "A list of token ids", "RenderChat": "The conversation, with its tools,"}
_CONTENTS_WITH_MEDIA = {
    "Encode": "The text, with its images,",
    "RenderChat": "The conversation, with its images,",
    "PrepareSpeech": "The recording",
}
_CHECKS_IN_TIMEOUT = 4
_MOST_LIGHT_BYTES = 64 << 10
"""Size of the largest light call. Its texts are encoded in less than 0.1 s."""

_Request = (
    tokenizer_pb2.EncodeRequest
    | tokenizer_pb2.DecodeRequest
    | tokenizer_pb2.RenderChatRequest
    | tokenizer_pb2.PrepareSpeechRequest
)


class TokenizerCalls:
    """The calls to all tokenizer replicas.

    Args:
        replicas, recovery_timeout_s, stall_s, on_answer, max_message_bytes: see TokenizerClient.
    """

    def __init__(
        self,
        replicas: TokenizerReplicas,
        *,
        recovery_timeout_s: float,
        stall_s: float,
        on_answer: Callable[[str, float], None],
        max_message_bytes: int,
    ) -> None:
        self._replicas = replicas
        self._timeout_s = recovery_timeout_s
        self._stall_s = stall_s
        self._on_answer = on_answer
        self._max_message_bytes = max_message_bytes
        # Guards the retries of suspect calls: only one of them runs at a time, so a crash is counted for the right call.
        self._suspects = asyncio.Lock()
        # Enough time for a second replica if the first one stalls.
        batches = partial(TokenizerBatches, self._ask_together, 2 * stall_s)
        self._batches = {method: batches() for method in ("Encode", "RenderChat")}
        self._batch_ids = itertools.count(1)

    async def answer(self, method: str, request: _Request, *, harmless: bool = False, affinity: bytes = b"") -> Any:
        """Return the answer of any replica; InvalidRequest for a request that is too large for a message.

        Args:
            method: name of the service's method.
            request: argument of the method.
            harmless: whether the request cannot be the cause of lost tokenizers, so that losses do not fail it.
            affinity: calls with the same value go to the same replica first; empty: to any.
        """
        num_bytes = request.ByteSize()
        if num_bytes > self._max_message_bytes:
            contents = _CONTENTS_WITH_MEDIA if has_media(request) else _CONTENTS
            raise too_large(contents[method], num_bytes, self._max_message_bytes)
        backoff = Backoff()
        lost: set[Connection] = set()
        started = time.perf_counter()
        try:
            async with running_timeout(self._timeout_s) as limit:
                answer = await self._batches[method].ask(request, lost) if goes_together(request) else None
                while answer is None:
                    async with self._suspects if len(lost) >= _LOSSES_TO_BE_ALONE else contextlib.nullcontext():
                        await self._replicas.wait_usable()
                        answer = await self._first_answer(method, request, lost, affinity, limit)
                    if answer is None:
                        await backoff.wait()
                    if harmless:
                        lost.clear()
                self._on_answer(method, time.perf_counter() - started)
                return answer
        except TimeoutError:
            text = f"The tokenizer at {self._replicas} did not answer within {self._timeout_s:g} s; try again later."
            raise Unavailable(text, retry_after_s=self._timeout_s) from None

    async def _ask_together(self, request: tokenizer_pb2.BatchRequest, lost: set[Connection]) -> Any:
        request.id = next(self._batch_ids)
        return await self._first_answer("Batch", request, lost)

    async def _first_answer(
        self,
        method: str,
        request: object,
        lost: set[Connection],
        affinity: bytes = b"",
        limit: RunningLimit | None = None,
    ) -> Any:
        """Call one replica after the other: the next if one is lost, or slow with a light call; return the first answer.

        None: no replica answers now.

        Args:
            method: name of the service's method.
            request: argument of the method.
            lost: receives the connections that broke during this call.
            affinity: see `answer`.
            limit: the time of the call; it is restarted while a tokenizer that preprocesses its images is alive.

        Raises:
            PoisonousRequest: too many connections broke.
            InvalidRequest: the replica refused the request; if for an image that it has not kept, then all replicas did.
        """
        missing: InvalidRequest | None = None
        asked: dict[asyncio.Task[Any], Connection] = {}
        tried: set[Connection] = set()
        patience_s = self._stall_s if _is_light(request) else None
        try:
            while True:
                found = next((each for each in self._connections(affinity) if each not in tried), None)
                if found is not None:
                    tried.add(found)
                    asked[asyncio.create_task(self._ask(found[0], method, request, limit))] = found
                if not asked:
                    if missing is not None:
                        raise missing
                    return None
                done, _ = await asyncio.wait(asked, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                if not done and found is not None:
                    found[0].suspect = True
                for task in done:
                    connection = asked.pop(task)
                    try:
                        answer = task.result()
                    except InvalidRequest as error:
                        if not names_missing_image(error):
                            raise
                        missing = error
                        continue
                    connection[0].suspect = answer is None or answer is _REFUSED
                    if answer is None:
                        _note_loss(connection, lost)
                        if len(lost) >= _LOSSES_TO_BE_ALONE:
                            return None
                    elif answer is not _REFUSED:
                        return answer
        finally:
            for task in asked:
                task.cancel()
            if asked:
                await asyncio.gather(*asked, return_exceptions=True)

    async def _ask(self, replica: Replica, method: str, request: object, limit: RunningLimit | None) -> Any:
        """Return a replica's answer as `ask`; for images, restart the limit while the replica answers other calls."""
        if limit is None or not has_media(request):
            return await ask(replica, method, request)
        watch = asyncio.create_task(_watch(replica, limit, self._timeout_s / _CHECKS_IN_TIMEOUT))
        try:
            return await ask(replica, method, request)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    def _connections(self, affinity: bytes) -> list[Connection]:
        return [(replica, replica.num_connections) for replica in self._replicas.in_order(affinity)]


def _is_light(request: Any) -> bool:
    """Return whether a call is short: it has short texts, no images and no client's template, which may run without end."""
    calls = (tokenizer_pb2.EncodeRequest, tokenizer_pb2.RenderChatRequest)
    has_template = isinstance(request, calls) and request.HasField("chat_template")
    return not has_template and not has_media(request) and request.ByteSize() <= _MOST_LIGHT_BYTES


async def _watch(replica: Replica, limit: RunningLimit, interval_s: float) -> None:
    """Request a replica's facts periodically, and restart the limit with each answer."""
    while True:
        await asyncio.sleep(interval_s)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await replica.link.get_info(timeout_s=interval_s)
            limit.restart()


def _note_loss(connection: Connection, lost: set[Connection]) -> None:
    """Add a broken connection to `lost`; PoisonousRequest if there are too many."""
    lost.add(connection)
    if len(lost) >= _MOST_LOSSES:
        raise PoisonousRequest(f"{len(lost)} tokenizers were lost while they worked on this request; it is not tried again.")


async def ask(replica: Replica, method: str, request: object) -> Any:
    """Return a replica's answer; None if the replica is lost or sent invalid data. Raises the replica's error."""
    try:
        if isinstance(request, tokenizer_pb2.BatchRequest):
            return await replica.batches.ask(request)
        # Bytes that cannot be decoded are returned as None.
        return await replica.link.call(method, request, current_context())
    except grpc.aio.AioRpcError as error:
        if error.code() in _LOST:
            return _REFUSED if has_details(error) else None
        # The connection failed, for example because of invalid bytes; the error is not the replica's.
        if error.code() in _BROKEN and not has_details(error):
            return None
        raise from_rpc_error(error) from error
    except ConnectionError:
        return None
    except asyncio.CancelledError as error:
        if not is_call_closed(error):
            raise
        return _REFUSED  # the replica was removed
