"""TokenizerLink: the connection of a frontend to one tokenizer.

Each replica has one link. It makes unary calls, opens the streams for batches and for detokenization, and reports whether the
tokenizer is connected. TokenizerChannel implements it over a channel of any carrier (services/rpc/carrier.py). Calls raise
AioRpcError.
"""

from collections.abc import AsyncIterable, Awaitable
from typing import Any, Protocol

import grpc

from tetrad.services.request_context import RequestContext
from tetrad.services.rpc.channel import problem_of
from tetrad.v1 import tokenizer_pb2, tokenizer_pb2_grpc

_STREAMED = ("PrepareSpeech",)
"""Methods whose answers are streams."""


class MessageStream(Protocol):
    """A stream in both directions; a read returns grpc.aio.EOF at the end, and None for bytes that cannot be decoded."""

    async def write(self, message: Any) -> None:
        """Send a message."""

    async def read(self) -> Any:
        """Return the next message."""

    def cancel(self) -> bool:
        """End the stream; a pending read raises CancelledError."""


class TokenizerLink(Protocol):
    """A connection to a tokenizer, which may be lost and return."""

    @property
    def problem(self) -> str:
        """The reason why the tokenizer is unreachable; empty if it is reachable or the reason is unknown."""

    def call(self, method: str, request: Any, context: RequestContext) -> Awaitable[Any]:
        """Return the answer to Encode, Decode or RenderChat, or the list of answers to PrepareSpeech.

        `context` is the client request's.
        """

    def get_info(self, *, timeout_s: float) -> Awaitable[tokenizer_pb2.GetInfoResponse]:
        """Return the tokenizer's facts."""

    def get_bundle(self, *, timeout_s: float) -> AsyncIterable[tokenizer_pb2.GetBundleResponse]:
        """Return the tokenizer's files."""

    def reset_media_cache(self, *, timeout_s: float) -> Awaitable[tokenizer_pb2.ResetMediaCacheResponse]:
        """Let the tokenizer forget its preprocessed images."""

    def open_batches(self) -> MessageStream:
        """Start a Batch stream."""

    def open_detokenizer(self) -> MessageStream:
        """Start a Detokenize stream."""

    async def wait_connected(self) -> None:
        """Wait until the tokenizer is connected."""

    async def wait_lost(self) -> None:
        """Wait until the connection is lost."""

    async def close(self) -> None:
        """Close the connection and end its calls."""


class TokenizerChannel:
    """A TokenizerLink over a channel, which it owns."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)

    @property
    def problem(self) -> str:
        """The state of the channel's connection."""
        return problem_of(self._channel)

    def call(self, method: str, request: Any, context: RequestContext) -> Awaitable[Any]:
        """Start a call."""
        call = getattr(self._stub, method)(request, metadata=tuple(context.headers().items()))
        answer: Awaitable[Any] = _all_of(call) if method in _STREAMED else call
        return answer

    def get_info(self, *, timeout_s: float) -> Awaitable[tokenizer_pb2.GetInfoResponse]:
        """Start GetInfo."""
        call: Awaitable[tokenizer_pb2.GetInfoResponse] = self._stub.GetInfo(tokenizer_pb2.GetInfoRequest(), timeout=timeout_s)
        return call

    def get_bundle(self, *, timeout_s: float) -> AsyncIterable[tokenizer_pb2.GetBundleResponse]:
        """Start GetBundle."""
        call: AsyncIterable[tokenizer_pb2.GetBundleResponse] = self._stub.GetBundle(
            tokenizer_pb2.GetBundleRequest(), timeout=timeout_s
        )
        return call

    def reset_media_cache(self, *, timeout_s: float) -> Awaitable[tokenizer_pb2.ResetMediaCacheResponse]:
        """Start ResetMediaCache."""
        call: Awaitable[tokenizer_pb2.ResetMediaCacheResponse] = self._stub.ResetMediaCache(
            tokenizer_pb2.ResetMediaCacheRequest(), timeout=timeout_s
        )
        return call

    def open_batches(self) -> MessageStream:
        """Start Batch."""
        call: MessageStream = self._stub.Batch()
        return call

    def open_detokenizer(self) -> MessageStream:
        """Start Detokenize."""
        call: MessageStream = self._stub.Detokenize()
        return call

    async def wait_connected(self) -> None:
        """Wait until the channel is connected."""
        while (state := self._channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            await self._channel.wait_for_state_change(state)

    async def wait_lost(self) -> None:
        """Wait until the channel is not connected any more."""
        while (state := self._channel.get_state()) is grpc.ChannelConnectivity.READY:
            await self._channel.wait_for_state_change(state)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()


async def _all_of(answers: AsyncIterable[Any]) -> list[Any]:
    return [answer async for answer in answers]
