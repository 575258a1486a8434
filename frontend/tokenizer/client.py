"""TokenizerClient: encodes texts, decodes ids and renders chats by calls that any tokenizer replica can answer.

Small calls share messages (client_batches.py). Calls have no side effects, so a broken call is repeated at once on another
replica, and a slow light call is sent to a second one; a heavy call is not, since it would occupy two tokenizers with the same
work. Failed calls are repeated until `recovery_timeout_s` is over. A text may crash tokenizers: calls during which two were
lost are repeated one at a time, and a call during which three were lost fails.
"""

import asyncio
import contextlib
import itertools
import json
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc

from tetrad.frontend.net.backoff import Backoff
from tetrad.frontend.net.together import all_of
from tetrad.frontend.request.call_trace import call_phase
from tetrad.frontend.tokenizer.client_batches import TokenizerBatches, goes_together
from tetrad.frontend.tokenizer.replicas import Connection, Replica, TokenizerReplicas
from tetrad.services.errors import InvalidRequest, PoisonousRequest, Unavailable
from tetrad.services.message_size import DEFAULT_MAX_MESSAGE_BYTES, batches, too_large
from tetrad.services.request_context import current_context
from tetrad.services.rpc.channel import is_call_closed
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.services.rpc.status import from_rpc_error, has_details
from tetrad.services.timers.running_time import running_timeout
from tetrad.v1 import tokenizer_pb2, types_pb2

_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_BROKEN = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
# The result of a call that the replica refused without trying it.
_REFUSED = object()
_LOSSES_TO_BE_ALONE, _MOST_LOSSES = 2, 3
_CONTENTS = {"Encode": "Text to tokenize", "Decode": "A list of token ids", "RenderChat": "The conversation, with its tools,"}
_FIELDS_OF_PAIRS = {"texts": "text_1", "text_pairs": "text_2", "messages_json": "chat_template"}
"""Fields of an EncodeRequest with pairs -> fields of the public API. A template writes the messages of a pair."""
_ENTRY_BYTES = 16
"""Upper bound of the bytes that a message adds to an entry: tags and lengths."""

_Request = tokenizer_pb2.EncodeRequest | tokenizer_pb2.DecodeRequest | tokenizer_pb2.RenderChatRequest
_MESSAGE_OF_MANY_BYTES = 16 << 10
"""Size of each of the messages that carry many short texts: the tokenizer encodes one in about 10 ms."""
_MOST_LIGHT_BYTES = 64 << 10
"""Size of the largest light call. Its texts are encoded in less than 0.1 s."""


@dataclass(frozen=True)
class RenderedChat:
    """The rendered prompt of a conversation, as text and ids."""

    prompt: str
    token_ids: list[int]


@dataclass(frozen=True)
class PairTemplate:
    """The template that joins a pair of texts to one prompt.

    Attributes:
        source: a Jinja template; None: the tokenizer's configured template, if any.
        kwargs: further variables of the template; empty: none.
    """

    source: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether a request sets any of the fields."""
        return self.source is not None or bool(self.kwargs)


NO_TEMPLATE = PairTemplate()


class TokenizerClient:
    """The client of all tokenizer replicas.

    Args:
        replicas: the tokenizers to call; owned by the caller.
        recovery_timeout_s: maximum seconds of a call, including the wait for a lost tokenizer.
        stall_s: seconds after which a light call is also sent to a second replica.
        on_answer: called with the method of each answered call and its seconds, including waits.
        max_message_bytes: size of the largest message to a replica.
    """

    def __init__(
        self,
        replicas: TokenizerReplicas,
        *,
        recovery_timeout_s: float,
        stall_s: float,
        on_answer: Callable[[str, float], None],
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        self._replicas = replicas
        self._timeout_s = recovery_timeout_s
        self._stall_s = stall_s
        self._on_answer = on_answer
        self._max_message_bytes = max_message_bytes
        self._token_texts: dict[int, str] = {}
        # Guards the retries of suspect calls, so that only one call that may crash tokenizers runs at a time: a harmless
        # suspect is then not blamed for another one's crash.
        self._suspects = asyncio.Lock()
        # Enough time for a second replica if the first one stalls.
        batches = partial(TokenizerBatches, self._ask_together, 2 * stall_s)
        self._batches = {method: batches() for method in ("Encode", "RenderChat")}
        self._batch_ids = itertools.count(1)

    async def encode(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
        keep_end: bool = True,
    ) -> list[list[int]]:
        """Return the ids of each text.

        Args:
            texts: any number of texts.
            add_special_tokens: add BOS and the like.
            max_tokens: maximum number of tokens of each text to keep; None: all.
            keep_end: whether the last tokens are kept rather than the first.
        """
        encodings = await self._encode(texts, add_special_tokens, max_tokens, keep_end, with_strings=False)
        return [unpack_u32(encoding.token_ids) for encoding in encodings]

    async def encode_many(
        self, texts: Sequence[str], *, add_special_tokens: bool, max_tokens: int | None, keep_end: bool
    ) -> list[list[int]]:
        """Return the ids of each text, like `encode`; the texts are sent in parts that tokenizers encode concurrently."""
        parts = [
            self.encode(part, add_special_tokens=add_special_tokens, max_tokens=max_tokens, keep_end=keep_end)
            for part in batches(texts, lambda text: len(text) + _ENTRY_BYTES, _MESSAGE_OF_MANY_BYTES)
        ]
        return [ids for part in await all_of(parts) for ids in part]

    async def encode_pairs(
        self, pairs: Sequence[tuple[str, str]], *, max_tokens: int | None = None, template: PairTemplate = NO_TEMPLATE
    ) -> list[tuple[list[int], int | None]]:
        """Return the ids of each pair of texts, joined by the tokenizer's rules, and the index of the first token of type 1.

        Args:
            pairs: any number of pairs.
            max_tokens: maximum number of tokens of each pair; the second text is cut. None: no limit.
            template: joins the texts of a pair.
        """
        parts = [
            self._encode_some_pairs(part, max_tokens, template)
            for part in batches(pairs, lambda pair: len(pair[0]) + len(pair[1]) + _ENTRY_BYTES, _MESSAGE_OF_MANY_BYTES)
        ]
        # Tokenizers limit how many clients' templates they run at a time, so such parts are sent one after the other.
        encoded = await all_of(parts) if template.source is None else [await part for part in parts]
        return [each for part in encoded for each in part]

    async def _encode_some_pairs(
        self, pairs: Sequence[tuple[str, str]], max_tokens: int | None, template: PairTemplate
    ) -> list[tuple[list[int], int | None]]:
        firsts, seconds = zip(*pairs, strict=True)
        request = tokenizer_pb2.EncodeRequest(
            texts=firsts,
            text_pairs=seconds,
            max_tokens=max_tokens,
            chat_template=template.source,
            chat_template_kwargs_json=_json(template.kwargs),
        )
        try:
            with call_phase("tokenize"):
                response = await self._call("Encode", request)
        except InvalidRequest as error:
            field = error.field or "texts"
            error.field = _FIELDS_OF_PAIRS.get(field, field).removesuffix("_json")
            raise
        return [
            (unpack_u32(each.token_ids), each.token_type_boundary if each.HasField("token_type_boundary") else None)
            for each in response.encodings
        ]

    async def encode_with_strings(self, text: str, *, add_special_tokens: bool = True) -> tuple[list[int], list[str]]:
        """Return the ids of a text and the vocabulary entry of each."""
        [encoding] = await self._encode([text], add_special_tokens, None, keep_end=True, with_strings=True)
        return unpack_u32(encoding.token_ids), list(encoding.token_strings)

    async def decode(self, sequences: Iterable[Sequence[int]], *, skip_special_tokens: bool = True) -> list[str]:
        """Return the text of each sequence of ids."""
        return await self._decode(sequences, skip_special_tokens=skip_special_tokens)

    async def _decode(
        self, sequences: Iterable[Sequence[int]], *, skip_special_tokens: bool, harmless: bool = False
    ) -> list[str]:
        columns = (types_pb2.TokenIds(ids=pack_u32(ids)) for ids in sequences)
        texts: list[str] = []
        for batch in batches(columns, lambda column: len(column.ids) + _ENTRY_BYTES):
            request = tokenizer_pb2.DecodeRequest(sequences=batch, skip_special_tokens=skip_special_tokens)
            response = await self._call("Decode", request, harmless=harmless)
            texts += response.texts
        return texts

    async def render_chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        documents: Sequence[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
        max_tokens: int | None = None,
        max_prompt_chars: int | None = None,
    ) -> RenderedChat:
        """Return the prompt of a conversation; InvalidRequest with the template's message if the template refuses it."""
        request = tokenizer_pb2.RenderChatRequest(
            messages_json=_json(messages),
            tools_json=_json(tools),
            documents_json=_json(documents),
            chat_template=chat_template,
            chat_template_kwargs_json=_json(chat_template_kwargs),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            add_special_tokens=add_special_tokens,
            max_tokens=max_tokens,
            max_prompt_chars=max_prompt_chars,
        )
        try:
            with call_phase("tokenize"):
                response = await self._call("RenderChat", request)
        except InvalidRequest as error:
            # The public API has these fields without the suffix of the internal message.
            error.field = (error.field or "messages").removesuffix("_json")
            raise
        return RenderedChat(response.prompt, unpack_u32(response.token_ids))

    async def load_token_texts(self, token_ids: Iterable[int]) -> None:
        """Load the texts of tokens for `text_of`, in one call for all unknown ones; ids without a token stay unknown.

        Engine cores choose the ids, not clients, so this call cannot be what crashes a tokenizer: it is repeated until one
        answers, regardless of lost tokenizers.

        Raises:
            Unavailable: no tokenizer answered within the recovery timeout.
        """
        missing = sorted(set(token_ids) - self._token_texts.keys())
        if (info := self._replicas.info) is not None:
            missing = missing[: bisect_left(missing, info.vocab_size)]
        if missing:
            texts = await self._decode(([token_id] for token_id in missing), skip_special_tokens=False, harmless=True)
            self._token_texts.update(zip(missing, texts, strict=True))

    @property
    def knows_all_texts(self) -> bool:
        """Whether the texts of all of the tokenizer's tokens are loaded."""
        return self._replicas.info is not None and len(self._token_texts) >= self._replicas.info.vocab_size

    def text_of(self, token_id: int) -> str | None:
        """Return the text of a token; None if it has not been loaded."""
        return self._token_texts.get(token_id)

    async def _encode(
        self, texts: Sequence[str], add_special_tokens: bool, max_tokens: int | None, keep_end: bool, *, with_strings: bool
    ) -> Sequence[tokenizer_pb2.Encoding]:
        side = tokenizer_pb2.TRUNCATION_SIDE_LEFT if keep_end else tokenizer_pb2.TRUNCATION_SIDE_RIGHT
        request = tokenizer_pb2.EncodeRequest(
            texts=texts,
            add_special_tokens=add_special_tokens,
            max_tokens=max_tokens,
            truncation_side=side,
            return_token_strings=with_strings,
        )
        with call_phase("tokenize"):
            response = await self._call("Encode", request)
        encodings: Sequence[tokenizer_pb2.Encoding] = response.encodings
        return encodings

    async def _call(self, method: str, request: _Request, *, harmless: bool = False) -> Any:
        """Return the answer of any replica; InvalidRequest for a request that is too large for a message.

        Args:
            method: name of the service's method.
            request: argument of the method.
            harmless: whether the request cannot be the cause of lost tokenizers, so that losses do not fail it.
        """
        num_bytes = request.ByteSize()
        if num_bytes > self._max_message_bytes:
            raise too_large(_CONTENTS[method], num_bytes, self._max_message_bytes)
        backoff = Backoff()
        lost: set[Connection] = set()
        started = time.perf_counter()
        try:
            async with running_timeout(self._timeout_s):
                answer = await self._batches[method].ask(request, lost) if goes_together(request) else None
                while answer is None:
                    async with self._suspects if len(lost) >= _LOSSES_TO_BE_ALONE else contextlib.nullcontext():
                        await self._replicas.wait_usable()
                        answer = await self._first_answer(method, request, lost)
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

    async def _first_answer(self, method: str, request: object, lost: set[Connection]) -> Any:
        """Call one replica after the other: the next if one is lost, or slow with a light call; return the first answer.

        None: no replica answers now.

        Args:
            method: name of the service's method.
            request: argument of the method.
            lost: receives the connections that broke during this call.

        Raises:
            PoisonousRequest: too many connections broke.
        """
        asked: dict[asyncio.Task[Any], Connection] = {}
        tried: set[Connection] = set()
        patience_s = self._stall_s if _is_light(request) else None
        try:
            while True:
                found = next((each for each in self._connections() if each not in tried), None)
                if found is not None:
                    tried.add(found)
                    asked[asyncio.create_task(ask(found[0], method, request))] = found
                if not asked:
                    return None
                done, _ = await asyncio.wait(asked, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                if not done and found is not None:
                    found[0].suspect = True
                for task in done:
                    connection, answer = asked.pop(task), task.result()
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

    def _connections(self) -> list[Connection]:
        return [(replica, replica.num_connections) for replica in self._replicas.in_order()]


def _is_light(request: Any) -> bool:
    """Return whether a call is short: it has short texts and no client's template, which may run without end."""
    calls = (tokenizer_pb2.EncodeRequest, tokenizer_pb2.RenderChatRequest)
    has_template = isinstance(request, calls) and request.HasField("chat_template")
    return not has_template and request.ByteSize() <= _MOST_LIGHT_BYTES


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


def _json(value: object) -> bytes:
    return json.dumps(value).encode() if value else b""
