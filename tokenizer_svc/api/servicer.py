"""Servicer: implements tetrad.v1.TokenizerService.

Encoding, decoding and packing run in threads and chat templates in their own processes, so the event loop only handles
Detokenize messages, which take microseconds, and short texts, for which a thread would take longer. Memory is limited by the
pending calls (pending_calls.py) and by the texts being encoded (encoding_threads.py).
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import grpc

from tetrad.services.errors import InvalidRequest, TetradError
from tetrad.services.log import get_logger
from tetrad.services.message_size import BATCH_BYTES, DEFAULT_MAX_MESSAGE_BYTES, too_large
from tetrad.services.observability.tracing import NoTracer, Span, Tracer, spanned
from tetrad.services.request_context import RequestContext, bind_context
from tetrad.services.rpc.columns import U32_BYTES, unpack_u32
from tetrad.services.rpc.interceptors import answered_error
from tetrad.services.rpc.status import to_status
from tetrad.tokenizer_svc.api.media_wire import decode_media, features_bytes, media_bytes, num_media, write_features
from tetrad.tokenizer_svc.api.servicer_pairs import PairEncoding
from tetrad.tokenizer_svc.api.wire import (
    EncodedText,
    adds_special_tokens,
    append_sizes,
    apply_to_stream,
    decode_conversation,
    decode_prompt_ids,
    decode_truncation,
    encode_info,
    encode_tokens,
    skips_special_tokens,
)
from tetrad.tokenizer_svc.chat.pair_prompts import PairPrompts
from tetrad.tokenizer_svc.chat.renderer import ChatRenderer
from tetrad.tokenizer_svc.media.attended import AttendedMedia
from tetrad.tokenizer_svc.media.items import PlacedMedia
from tetrad.tokenizer_svc.media.message_room import media_too_large
from tetrad.tokenizer_svc.media.prompts import ModelMedia, PromptMedia
from tetrad.tokenizer_svc.observability.metrics import TokenizerMetrics
from tetrad.tokenizer_svc.tokenizer.detokenize_stream import DetokenizeStream
from tetrad.tokenizer_svc.tokenizer.encoding_threads import EncodingThreads
from tetrad.tokenizer_svc.tokenizer.pending_calls import PendingCalls
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer, Truncation
from tetrad.v1 import tokenizer_pb2, tokenizer_pb2_grpc

Response = TypeVar("Response", tokenizer_pb2.EncodeResponse, tokenizer_pb2.DecodeResponse, tokenizer_pb2.RenderChatResponse)
WithMedia = TypeVar("WithMedia", tokenizer_pb2.EncodeResponse, tokenizer_pb2.RenderChatResponse)
_Call = tokenizer_pb2.EncodeRequest | tokenizer_pb2.DecodeRequest | tokenizer_pb2.RenderChatRequest

_SHORT_CHARS = 500
"""Maximum characters of the texts of a call that are encoded on the event loop, with _TEXT_CHARS for each text: this takes an
eighth of a millisecond, and 4 ms for a batch of calls. To pass a text to a thread and back takes 0.1 ms of CPU time."""
_TEXT_CHARS = 20
"""Number of characters that take as long as a text takes besides its own."""
_MESSAGES_AT_ONCE = 64
"""Maximum number of unanswered messages of one stream; further ones are not read until one is answered."""

log = get_logger()


class TokenizerServicer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Serves one tokenizer.

    Args:
        tokenizer: shared by all calls.
        chat: renders conversations; owned by the caller.
        pool: the threads that encode texts; owned by the caller.
        model: name of the model, from the settings.
        max_text_bytes: maximum size of a text to encode, and of all long texts encoded at the same time, in bytes of UTF-8.
        max_message_bytes: maximum size of a response.
        max_pending_text_bytes: maximum bytes of texts and conversations that have no answer yet.
        max_pending_media_bytes: maximum bytes of media that have no answer yet.
        long_text_threads: maximum number of long texts encoded at the same time.
        media: preprocesses media; owned by the caller. None: they are refused.
        metrics: metrics of this servicer; None: a new object.
        tracer: makes the spans of requests; None: no spans.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat: ChatRenderer,
        pool: ThreadPoolExecutor,
        *,
        model: str,
        max_text_bytes: int,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        max_pending_text_bytes: int = 64 << 20,
        max_pending_media_bytes: int = 256 << 20,
        long_text_threads: int = 1,
        media: ModelMedia | None = None,
        metrics: TokenizerMetrics | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer or NoTracer()
        self._tokenizer = tokenizer
        self._chat = chat
        self._threads = EncodingThreads(pool, long_text_threads=long_text_threads, max_text_bytes=max_text_bytes)
        self._media = media or ModelMedia(tokenizer, model, {}, {}, max_message_bytes=max_message_bytes)
        self._info = encode_info(tokenizer, model, self._media.limits)
        self._max_message_bytes = max_message_bytes
        self._pending = PendingCalls(max_pending_text_bytes, max_pending_media_bytes)
        self._metrics = metrics or TokenizerMetrics()
        self._pairs = PairEncoding(
            tokenizer, PairPrompts(tokenizer, chat), self._threads, self._metrics, self._encode_written_pair
        )

    async def Encode(
        self,
        request: tokenizer_pb2.EncodeRequest,
        context: grpc.aio.ServicerContext,
    ) -> tokenizer_pb2.EncodeResponse:
        """Convert texts to ids."""
        media: Sequence[PlacedMedia] = ()
        with self._in_flight(request), spanned(self._tracer, "encode", kind="server") as span:
            if request.text_pairs:
                encodings = await self._pairs.encode(request)
            elif request.token_ids:
                encoding, media = await self._encode_prompt_ids(request)
                encodings = [encoding]
            else:
                self._media.check_numbers(num_media(request))
                encode = partial(
                    self._encode_to_wire,
                    add_special_tokens=adds_special_tokens(request),
                    truncation=decode_truncation(request),
                    with_strings=request.return_token_strings,
                    media=await self._preprocess(request),
                )
                encoded = await self._encode_all(encode, request.texts, num_media=len(request.media))
                encodings, media = [text.message for text in encoded], encoded[0].media if request.media else ()
            _report(span, encodings)
        return await self._completed(tokenizer_pb2.EncodeResponse(encodings=encodings), "texts", media)

    async def Decode(
        self,
        request: tokenizer_pb2.DecodeRequest,
        context: grpc.aio.ServicerContext,
    ) -> tokenizer_pb2.DecodeResponse:
        """Convert ids to texts."""
        with self._in_flight(request):
            texts = await self._threads.run(partial(self._decode, request))
        return self._fitting(tokenizer_pb2.DecodeResponse(texts=texts), "sequences")

    async def RenderChat(
        self,
        request: tokenizer_pb2.RenderChatRequest,
        context: grpc.aio.ServicerContext,
    ) -> tokenizer_pb2.RenderChatResponse:
        """Render a conversation to a prompt, and return it with its ids."""
        with self._in_flight(request), spanned(self._tracer, "render_chat", kind="server") as span:
            self._media.check_numbers(num_media(request))
            with self._metrics.render.time():
                prompt = await self._chat.render(decode_conversation(request))
            encode = partial(
                self._encode_to_wire,
                add_special_tokens=request.add_special_tokens,
                truncation=decode_truncation(request),
                with_strings=False,
                media=await self._preprocess(request),
                field="messages_json",
            )
            with self._pending.texts.admit(len(prompt)):
                [text] = await self._encode_all(encode, [prompt], field="messages_json", num_media=len(request.media))
            _report(span, [text.message])
        response = tokenizer_pb2.RenderChatResponse(prompt=prompt, token_ids=text.message.token_ids)
        return await self._completed(response, "messages_json", text.media)

    async def Batch(
        self,
        request_iterator: AsyncIterator[tokenizer_pb2.BatchRequest],
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Run all calls of a message, and several messages, at the same time; each call has its own answer or error."""
        room, turn = asyncio.Semaphore(_MESSAGES_AT_ONCE), asyncio.Lock()

        async def answer(request: tokenizer_pb2.BatchRequest) -> None:
            with self._pending.count():
                answers = await asyncio.gather(*(self._answer(call, context) for call in request.calls))
                async with turn:  # gRPC accepts one message at a time
                    await context.write(tokenizer_pb2.BatchResponse(answers=_within_a_message(answers), id=request.id))
            room.release()

        refusal: TetradError | None = None
        try:
            async with asyncio.TaskGroup() as messages:
                try:
                    async for request in request_iterator:
                        await room.acquire()
                        messages.create_task(answer(request))
                except TetradError as error:
                    # The group first waits for the other answers: a call whose write is cancelled would never end.
                    refusal = error
        except ExceptionGroup as failed:
            failure = failed.exceptions[0]
            if isinstance(failure, grpc.aio.InternalError):  # the caller has left
                raise asyncio.CancelledError from None
            raise failure from None
        if refusal is not None:
            raise refusal

    async def Detokenize(
        self,
        request_iterator: AsyncIterator[tokenizer_pb2.DetokenizeRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[tokenizer_pb2.DetokenizeResponse]:
        """Convert ids to text deltas, one engine step after the other."""
        stream = DetokenizeStream(self._tokenizer)
        with self._metrics.stream(stream):
            async for request in request_iterator:
                started = time.perf_counter()
                response = apply_to_stream(stream, request)
                if response is not None:
                    self._metrics.observe_message(time.perf_counter() - started, *append_sizes(request))
                    yield response

    async def GetInfo(
        self,
        request: tokenizer_pb2.GetInfoRequest,
        context: grpc.aio.ServicerContext,
    ) -> tokenizer_pb2.GetInfoResponse:
        """Return the description of the tokenizer."""
        return self._info

    async def ResetMediaCache(
        self,
        request: tokenizer_pb2.ResetMediaCacheRequest,
        context: grpc.aio.ServicerContext,
    ) -> tokenizer_pb2.ResetMediaCacheResponse:
        """Forget the preprocessed items."""
        self._media.reset_cache()
        return tokenizer_pb2.ResetMediaCacheResponse()

    async def GetBundle(
        self,
        request: tokenizer_pb2.GetBundleRequest,
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[tokenizer_pb2.GetBundleResponse]:
        """Send the tokenizer's files; the last message has the checksum."""
        bundle = await self._threads.run(lambda: self._tokenizer.bundle)
        *chunks, last = bundle.chunks()
        for chunk in chunks:
            yield tokenizer_pb2.GetBundleResponse(data=chunk)
        yield tokenizer_pb2.GetBundleResponse(data=last, sha256=bundle.sha256)

    async def drain(self) -> None:
        """Wait until no call runs, batched or single. Streams may stay open: their clients continue on another replica."""
        await self._pending.wait_none()

    def close(self) -> None:
        """Start to encode no further long texts."""
        self._threads.close()

    async def _answer(self, call: tokenizer_pb2.BatchedCall, context: grpc.aio.ServicerContext) -> tokenizer_pb2.BatchedAnswer:
        with bind_context(RequestContext.from_headers(call.trace_headers)):
            try:
                match call.WhichOneof("call"):
                    case "encode":
                        return tokenizer_pb2.BatchedAnswer(encode=await self.Encode(call.encode, context))
                    case "render_chat":
                        return tokenizer_pb2.BatchedAnswer(render_chat=await self.RenderChat(call.render_chat, context))
                raise InvalidRequest("A batched call must be one of Encode or RenderChat.", field="calls")
            except Exception as error:  # noqa: BLE001 - the others of the batch are not affected
                return tokenizer_pb2.BatchedAnswer(error=to_status(answered_error("Batch", error)))

    def _in_flight(self, request: _Call) -> contextlib.AbstractContextManager[None]:
        """Count a call while the context is open. Raises Overloaded if texts or media exceed their limit."""
        num_image_bytes = 0 if isinstance(request, tokenizer_pb2.DecodeRequest) else media_bytes(request)
        return self._pending.admit(request.ByteSize() - num_image_bytes, num_image_bytes)

    async def _preprocess(
        self, request: tokenizer_pb2.EncodeRequest | tokenizer_pb2.RenderChatRequest
    ) -> PromptMedia | AttendedMedia | None:
        media = decode_media(request)
        return await self._media.preprocess(media.items, media.kwargs_json, media.io_kwargs_json) if media.items else None

    async def _encode_all(
        self,
        encode: Callable[[str], EncodedText],
        texts: Sequence[str],
        *,
        field: str = "texts",
        num_media: int = 0,
    ) -> Sequence[EncodedText]:
        sizes = [self._threads.text_bytes(text, field=field) for text in texts]
        # Media make a text longer before it is encoded.
        if not num_media and sum(map(len, texts)) + _TEXT_CHARS * len(texts) <= _SHORT_CHARS:
            return [encode(text) for text in texts]
        return await self._threads.run_all([(partial(encode, text), size) for text, size in zip(texts, sizes, strict=True)])

    async def _encode_written_pair(self, prompt: str) -> tokenizer_pb2.Encoding:
        encode = partial(self._encode_to_wire, add_special_tokens=True, truncation=None, with_strings=False)
        with self._pending.texts.admit(len(prompt)):
            [(encoding, _)] = await self._encode_all(encode, [prompt], field="text_pairs")
        return encoding

    def _encode_to_wire(
        self,
        text: str,
        *,
        add_special_tokens: bool,
        truncation: Truncation | None,
        with_strings: bool,
        media: PromptMedia | AttendedMedia | None = None,
        field: str = "texts",
    ) -> EncodedText:
        started = time.perf_counter()
        placed: Sequence[PlacedMedia] = ()
        if media is None:
            token_ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens, truncation=truncation)
        else:
            token_ids, placed = media.encode(text, add_special_tokens=add_special_tokens, truncation=truncation, field=field)
        strings = self._tokenizer.token_strings(token_ids) if with_strings else ()
        self._metrics.observe_encoded(time.perf_counter() - started, len(token_ids))
        return EncodedText(encode_tokens(token_ids, strings), placed)

    async def _encode_prompt_ids(self, request: tokenizer_pb2.EncodeRequest) -> EncodedText:
        token_ids, truncation = decode_prompt_ids(request), decode_truncation(request)
        media = decode_media(request)
        self._media.check_numbers(num_media(request))
        prompt = await self._media.preprocess(media.items, media.kwargs_json, media.io_kwargs_json)

        def encode() -> EncodedText:
            ids, placed = prompt.encode_ids(token_ids, truncation=truncation, field="token_ids")
            return EncodedText(encode_tokens(ids), placed)

        return await self._threads.run(encode)

    def _decode(self, request: tokenizer_pb2.DecodeRequest) -> list[str]:
        skip = skips_special_tokens(request)
        return [self._tokenizer.decode(unpack_u32(sequence.ids), skip_special_tokens=skip) for sequence in request.sequences]

    async def _completed(self, response: WithMedia, field: str, media: Sequence[PlacedMedia]) -> WithMedia:
        """Return a response with the media of its prompt. Raises InvalidRequest if it does not fit a message with them."""
        self._fitting(response, field, media)
        if media:
            await self._threads.run(partial(write_features, response, media))
        return response

    def _fitting(self, response: Response, field: str, media: Sequence[PlacedMedia] = ()) -> Response:
        """Return a response. Raises InvalidRequest if it does not fit a message: the caller must request less in one call."""
        num_bytes = response.ByteSize() + features_bytes(media)
        if num_bytes > self._max_message_bytes:
            if media:
                raise media_too_large(f"its {len(media)}", num_bytes, self._max_message_bytes)
            raise too_large("The answer", num_bytes, self._max_message_bytes, field=field)
        return response


def _report(span: Span, encodings: Sequence[tokenizer_pb2.Encoding]) -> None:
    """Add the numbers of texts and tokens to trace and log."""
    num_tokens = sum(len(encoding.token_ids) for encoding in encodings) // U32_BYTES
    span.set_attributes({"tetrad.tokens": num_tokens})
    log.debug("text.encoded", num_texts=len(encodings), num_tokens=num_tokens)


def _within_a_message(answers: Sequence[tokenizer_pb2.BatchedAnswer]) -> list[tokenizer_pb2.BatchedAnswer]:
    """Return the answers, without content beyond the size of one message: the client repeats those calls alone."""
    room_bytes, fitting = BATCH_BYTES, []
    for answer in answers:
        room_bytes -= answer.ByteSize()
        fitting.append(answer if room_bytes >= 0 else tokenizer_pb2.BatchedAnswer())
    return fitting
