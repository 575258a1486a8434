"""TokenizerClient: encodes texts, decodes ids and renders chats; any tokenizer replica answers a call (client_calls.py)."""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tetrad.frontend.media.features import MediaFeature
from tetrad.frontend.media.items import MediaItem
from tetrad.frontend.media.speech import PreparedSpeech, Recording
from tetrad.frontend.net.together import all_of
from tetrad.frontend.request.call_trace import call_phase
from tetrad.frontend.tokenizer.affinity import affinity_of, affinity_of_chat
from tetrad.frontend.tokenizer.client_calls import TokenizerCalls
from tetrad.frontend.tokenizer.media_wire import decode_features, placed_at_source, set_media
from tetrad.frontend.tokenizer.replicas import TokenizerReplicas
from tetrad.frontend.tokenizer.speech_wire import decode_speech, encode_recording
from tetrad.services.errors import InvalidRequest
from tetrad.services.message_size import BATCH_BYTES, DEFAULT_MAX_MESSAGE_BYTES, batches
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.v1 import tokenizer_pb2, types_pb2

_FIELDS_OF_PAIRS = {"texts": "text_1", "text_pairs": "text_2", "messages_json": "chat_template"}
"""Fields of an EncodeRequest with pairs -> fields of the public API. A template writes the messages of a pair."""
_ENTRY_BYTES = 16
"""Upper bound of the bytes that a message adds to an entry: tags and lengths."""

_MESSAGE_OF_MANY_BYTES = 16 << 10
"""Size of each of the messages that carry many short texts: the tokenizer encodes one in about 10 ms."""


@dataclass(frozen=True)
class RenderedChat:
    """The rendered prompt of a conversation, as text and ids, with the features of its images."""

    prompt: str
    token_ids: list[int]
    features: tuple[MediaFeature, ...] = ()


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
        self._max_message_bytes = max_message_bytes
        self._token_texts: dict[int, str] = {}
        self._calls = TokenizerCalls(
            replicas,
            recovery_timeout_s=recovery_timeout_s,
            stall_s=stall_s,
            on_answer=on_answer,
            max_message_bytes=max_message_bytes,
        )

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

    async def encode_with_media(
        self,
        prompt: str | Sequence[int],
        media: Sequence[MediaItem],
        kwargs: Mapping[str, Any] | None,
        io_kwargs: Mapping[str, Any] | None = None,
        *,
        add_special_tokens: bool,
    ) -> tuple[list[int], tuple[MediaFeature, ...]]:
        """Return the ids of a prompt with expanded placeholders, and the features of its images.

        Args:
            prompt: text or ids, with a placeholder for each image.
            media: the images, in the order of the placeholders.
            kwargs: settings of the media processor.
            io_kwargs: how files are read, by modality.
            add_special_tokens: add BOS and the like to a text.
        """
        if isinstance(prompt, str):
            request = tokenizer_pb2.EncodeRequest(texts=[prompt], add_special_tokens=add_special_tokens)
        else:
            request = tokenizer_pb2.EncodeRequest(token_ids=pack_u32(prompt))
        set_media(request, media, kwargs, io_kwargs)
        try:
            with call_phase("tokenize"):
                response = await self._calls.answer("Encode", request, affinity=affinity_of(media))
        except InvalidRequest as error:
            raise placed_at_source(error, media, "prompt") from None
        [encoding] = response.encodings
        return unpack_u32(encoding.token_ids), decode_features(encoding.mm_features)

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
                response = await self._calls.answer("Encode", request)
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
        self,
        sequences: Iterable[Sequence[int]],
        *,
        skip_special_tokens: bool,
        harmless: bool = False,
        batch_bytes: int = BATCH_BYTES,
    ) -> list[str]:
        columns = (types_pb2.TokenIds(ids=pack_u32(ids)) for ids in sequences)
        texts: list[str] = []
        for batch in batches(columns, lambda column: len(column.ids) + _ENTRY_BYTES, batch_bytes):
            request = tokenizer_pb2.DecodeRequest(sequences=batch, skip_special_tokens=skip_special_tokens)
            response = await self._calls.answer("Decode", request, harmless=harmless)
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
        media: Sequence[MediaItem] = (),
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        media_io_kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedChat:
        """Return the prompt of a conversation.

        InvalidRequest with the template's message if the template refuses it, or with the reason if an image cannot be read.
        """
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
        set_media(request, media, mm_processor_kwargs, media_io_kwargs)
        try:
            with call_phase("tokenize"):
                response = await self._calls.answer("RenderChat", request, affinity=affinity_of_chat(messages, media))
        except InvalidRequest as error:
            raise placed_at_source(error, media, "messages") from None
        return RenderedChat(response.prompt, unpack_u32(response.token_ids), decode_features(response.mm_features))

    async def prepare_speech(self, recording: Recording) -> PreparedSpeech:
        """Return a recording in pieces with their prompts.

        InvalidRequest if it cannot be read or the model does not know its language; Unsupported if the model reads no speech.
        """
        with call_phase("tokenize"):
            responses = await self._calls.answer("PrepareSpeech", encode_recording(recording))
        return decode_speech(responses)

    async def load_token_texts(self, token_ids: Iterable[int]) -> None:
        """Load the texts of tokens for `text_of`; ids without a token stay unknown.

        Many are loaded by several calls, between which other requests continue: to encode a vocabulary takes 0.1 s.

        Engine cores choose the ids, not clients, so this call cannot be what crashes a tokenizer: it is repeated until one
        answers, regardless of lost tokenizers.

        Raises:
            Unavailable: no tokenizer answered within the recovery timeout.
        """
        missing = sorted(set(token_ids) - self._token_texts.keys())
        if (info := self._replicas.info) is not None:
            missing = missing[: bisect_left(missing, info.vocab_size)]
        if missing:
            texts = await self._decode(
                ([token_id] for token_id in missing),
                skip_special_tokens=False,
                harmless=True,
                batch_bytes=_MESSAGE_OF_MANY_BYTES,
            )
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
            response = await self._calls.answer("Encode", request)
        encodings: Sequence[tokenizer_pb2.Encoding] = response.encodings
        return encodings


def _json(value: object) -> bytes:
    return json.dumps(value).encode() if value else b""
