"""Texts: serves calls that need only the tokenizer: prompts of conversations, ids of texts, texts of ids.

Owned by AsyncLLM. Refuses texts too long for a prompt of the served model; starts no requests.
"""

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from tetrad.frontend.llm.chat_messages import in_parts, num_chars, plain_messages
from tetrad.frontend.llm.pooling_inputs import placed, tokens_to_keep
from tetrad.frontend.llm.served_model import ServedModel
from tetrad.frontend.media.items import MediaItem
from tetrad.frontend.media.loader import MediaLoader
from tetrad.frontend.media.parts import Media, media_of_part, media_part
from tetrad.frontend.net.together import all_of
from tetrad.frontend.observability.metrics import FrontendMetrics, counting_errors
from tetrad.frontend.request.admission import Admission, estimated_tokens
from tetrad.frontend.request.deadlines import earliest_deadline, within
from tetrad.frontend.request.prompts import TokensPrompt, normalize_prompt
from tetrad.frontend.request.sampling_values import check_text
from tetrad.frontend.tokenizer.client import NO_TEMPLATE, PairTemplate, TokenizerClient
from tetrad.services.errors import InvalidRequest

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What a part of a character's bytes is decoded to."""


class ChatOptions(TypedDict, total=False):
    """How a conversation becomes a prompt.

    Attributes:
        tools: the functions that the model may call, in OpenAI's form.
        documents: the documents, for templates of retrieval models.
        chat_template: a Jinja template to use instead of the model's.
        chat_template_kwargs: further variables of the template; those that are not set have the server's defaults.
        add_generation_prompt: end the prompt with the opening of an assistant's turn, as by default.
        continue_final_message: leave the last message open.
        add_special_tokens: let the tokenizer add BOS and the like.
        mm_processor_kwargs: settings of the model's media processor.
        media_io_kwargs: how media files are read, by modality.
        cache_salt: separates the names that clients give to images.
        keep_parts: keep contents as lists of text parts, for templates that read such lists; else the parts are joined.
        is_truncated: the prompt will be truncated, so that it may be longer than the context.
    """

    tools: Sequence[dict[str, Any]] | None
    documents: Sequence[dict[str, Any]] | None
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None
    add_generation_prompt: bool
    continue_final_message: bool
    add_special_tokens: bool
    mm_processor_kwargs: dict[str, Any] | None
    media_io_kwargs: dict[str, Any] | None
    cache_salt: str
    keep_parts: bool
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class _Chat:
    """A conversation that has been checked.

    Attributes:
        arguments: the arguments of the tokenizer's render_chat without images.
        media: the images, not yet fetched.
        cache_salt: separates the images' names.
        num_chars: number of characters of the conversation.
    """

    arguments: dict[str, Any]
    media: list[Media]
    cache_salt: str
    num_chars: int


class Texts:
    """The texts of one model.

    Args:
        model: gives the limits of texts.
        tokenizer: client of the tokenizer service.
        admission: limits the texts and conversations in progress.
        metrics: count refused calls.
        media: reads the files of images.
        timeout_s: maximum duration of a call in seconds; None: no limit.
    """

    def __init__(
        self,
        model: ServedModel,
        tokenizer: TokenizerClient,
        admission: Admission,
        metrics: FrontendMetrics,
        media: MediaLoader,
        timeout_s: float | None,
    ) -> None:
        self.metrics = metrics
        self._media = media
        self._model = model
        self._tokenizer = tokenizer
        self._admission = admission
        self._timeout_s = timeout_s

    @counting_errors
    async def encode_chat(self, messages: Sequence[dict[str, Any]], **options: Unpack[ChatOptions]) -> TokensPrompt:
        """Return the prompt of a conversation, as text and ids, with the features of its images.

        Raises:
            InvalidRequest: there are no messages, an image cannot be read or is not allowed, or the model's template refuses
                the conversation; PromptTooLong if it is far too long.
            Overloaded, DeadlineExceeded: as in AsyncLLM.add_request.
        """
        chat = self._checked_chat(messages, options)
        # The admission is released after rendering; a following `add_request` takes it in the same iteration of the event loop.
        async with self._admitted(chat.num_chars):
            return await self._rendered(chat)

    @counting_errors
    async def encode_chats(
        self, conversations: Sequence[Sequence[dict[str, Any]]], **options: Unpack[ChatOptions]
    ) -> list[TokensPrompt]:
        """Return the prompts of several conversations, in their order; together they are one admission.

        There is at least one. Options and errors: see `encode_chat`; with several, an InvalidRequest names the index of one.
        """

        def checked(place: int) -> _Chat:
            try:
                chat = self._checked_chat(conversations[place], options)
                if chat.media:
                    raise InvalidRequest("images are not supported for pooling.", field="messages")
                return chat
            except InvalidRequest as error:
                raise placed(error, place, conversations) from None

        async def rendered(place: int, chat: _Chat) -> TokensPrompt:
            try:
                return await self._rendered(chat)
            except InvalidRequest as error:
                raise placed(error, place, conversations) from None

        chats = [checked(place) for place in range(len(conversations))]
        async with self._admitted(sum(chat.num_chars for chat in chats)):
            work = (rendered(place, chat) for place, chat in enumerate(chats))
            # Tokenizers limit how many clients' templates they run at a time.
            return await all_of(work) if options.get("chat_template") is None else [await each for each in work]

    @counting_errors
    async def with_files(self, messages: Sequence[dict[str, Any]], cache_salt: str = "") -> list[dict[str, Any]]:
        """Return messages with the files of their images, for conversations that are rendered more than once."""
        media: list[Media] = []
        plain_messages(messages, media, self._model.tokenizer.chat_template)
        self._model.media.check(media, kwargs={})
        if not media:
            return list(messages)
        async with self._admitted(0):
            files = iter(await self._files(media, cache_salt))
        return [_with_files(message, files) for message in messages]

    def _checked_chat(self, messages: Sequence[dict[str, Any]], options: ChatOptions) -> _Chat:
        self._model.check_chats()
        given: dict[str, Any] = {"add_generation_prompt": True, **options}
        if self._model.template_variables:
            given["chat_template_kwargs"] = self._model.template_variables | (given.get("chat_template_kwargs") or {})
        media: list[Media] = []
        plain = plain_messages(messages, media, self._template_of(options))
        kwargs, io_kwargs = given.get("mm_processor_kwargs") or {}, given.get("media_io_kwargs")
        self._model.media.check(media, kwargs=kwargs, io_kwargs=io_kwargs)
        if given["add_generation_prompt"] and given.get("continue_final_message"):
            text = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
            raise InvalidRequest(text, field="continue_final_message")
        if given.pop("keep_parts", False):
            plain = in_parts(messages, plain)
        size = num_chars([plain, *(given.get(name) for name in ("tools", "documents", "chat_template_kwargs"))])
        is_truncated = given.pop("is_truncated", False)
        if not is_truncated:
            self._model.limits.check_num_chars(size, field="messages")
        salt = given.pop("cache_salt", "")
        most = None if is_truncated else self._model.limits.max_prompt_chars
        arguments = {"messages": plain, **given, "max_prompt_chars": most}
        return _Chat(arguments, media, salt, size)

    def _template_of(self, options: ChatOptions) -> str:
        """Return the text of the template that renders a conversation."""
        return options.get("chat_template") or self._model.tokenizer.chat_template

    async def _rendered(self, chat: _Chat) -> TokensPrompt:
        media = await self._files(chat.media, chat.cache_salt)
        found = await self._tokenizer.render_chat(**chat.arguments, media=media)
        prompt = TokensPrompt(prompt=found.prompt, prompt_token_ids=found.token_ids)
        if found.features:
            prompt["mm_features"] = found.features
        return prompt

    async def _files(self, media: Sequence[Media], cache_salt: str) -> list[MediaItem]:
        """Return the files of images, in order; those that are loaded already unchanged."""
        sources = [each for each in media if not isinstance(each, MediaItem)]
        loaded = iter(await self._media.load(sources, cache_salt) if sources else ())
        return [each if isinstance(each, MediaItem) else next(loaded) for each in media]

    async def tokenize(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text."""
        return (await self.tokenize_with_strings(text, add_special_tokens=add_special_tokens))[0]

    async def tokenize_with_strings(self, text: str, *, add_special_tokens: bool = True) -> tuple[list[int], list[str]]:
        """Return the ids of a text and the vocabulary entry of each."""
        size = len(normalize_prompt(text).text or "")
        self._model.limits.check_num_chars(size)
        async with self._admitted(size):
            return await self._tokenizer.encode_with_strings(text, add_special_tokens=add_special_tokens)

    async def encode_pieces(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each piece of a rendered conversation, without special tokens around them."""
        async with self._admitted(sum(map(len, texts))):
            found = await self._tokenizer.encode([text for text in texts if text], add_special_tokens=False)
        ids = iter(found)
        return [next(ids) if text else [] for text in texts]

    @counting_errors
    async def tokenize_pairs(
        self, pairs: Sequence[tuple[str, str]], *, max_tokens: int | None = None, template: PairTemplate = NO_TEMPLATE
    ) -> list[tuple[list[int], int | None]]:
        """Return the ids of each pair of texts, joined for a cross-encoder, and the index of the first token of type 1.

        Args:
            pairs: pairs of texts; no text is empty.
            max_tokens: maximum number of tokens of each pair; -1: the length of the context. None: nothing is cut off.
            template: joins the texts of a pair.
        """
        limits = self._model.limits
        most = tokens_to_keep(max_tokens, limits.max_model_len)
        for place, pair in enumerate(pairs):
            try:
                for field, text in zip(("text_1", "text_2"), pair, strict=True):
                    check_text("text", text, field=field)
                    limits.check_text(text, field=field, is_truncated=most is not None)
            except InvalidRequest as error:
                raise placed(error, place, pairs) from None
        size = sum(len(first) + len(second) for first, second in pairs)
        async with self._admitted(size):
            return await self._tokenizer.encode_pairs(pairs, max_tokens=most, template=template)

    @counting_errors
    async def cut(self, texts: Sequence[str], max_tokens: int, *, field: str, text_field: str) -> list[str]:
        """Return the texts, each cut after its first `max_tokens` tokens; special tokens do not count.

        A character that would be cut in two is left out, unless nothing else remains.

        Args:
            texts: the texts; none is empty.
            max_tokens: at least 1, and less than the length of the context.
            field: the request's field with this limit, for errors.
            text_field: the request's field with the texts, for errors.
        """
        limits = self._model.limits
        if not 1 <= max_tokens < limits.max_model_len:
            text = f"{field} ({max_tokens}) must be at least 1 and less than max_model_len ({limits.max_model_len})."
            raise InvalidRequest(text, field=field)
        unique = list(dict.fromkeys(texts))
        for text in unique:
            limits.check_text(text, field=text_field, is_truncated=True)
        async with self._admitted(sum(map(len, unique))):
            encoded = await self._tokenizer.encode_many(
                unique, add_special_tokens=False, max_tokens=max_tokens + 1, keep_end=False
            )
            long = {text: ids[:max_tokens] for text, ids in zip(unique, encoded, strict=True) if len(ids) > max_tokens}
            shortened = await self._tokenizer.decode(long.values())
        found = {text: cut.rstrip(_REPLACEMENT) or cut for text, cut in zip(long, shortened, strict=True)}
        return [found.get(text, text) for text in texts]

    def check_ids(self, token_ids: Iterable[int], field: str) -> None:
        """Raise InvalidRequest for an id that no output of the model can have; `field` is the request's with the ids."""
        vocab_size = max(self._model.tokenizer.vocab_size, self._model.padded_vocab_size)
        wrong = next((i for i in token_ids if not 0 <= i < vocab_size), None)
        if wrong is not None:
            raise InvalidRequest(f"Token id {wrong} is out of vocabulary. Vocabulary size: {vocab_size}", field=field)

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids; those that only the model's padded vocabulary has are no text."""
        self.check_ids(token_ids, "tokens")
        ids = [token_id for token_id in token_ids if token_id < self._model.tokenizer.vocab_size]
        async with within(earliest_deadline(self._timeout_s)):
            return (await self._tokenizer.decode([ids], skip_special_tokens=skip_special_tokens))[0]

    async def token_texts(self, token_ids: Iterable[int]) -> dict[int, str]:
        """Return the text of each token by itself, as in log-probabilities."""
        ids = set(token_ids)
        async with within(earliest_deadline(self._timeout_s)):
            await self._tokenizer.load_token_texts(ids)
        return {token_id: self._tokenizer.text_of(token_id) or "" for token_id in ids}

    @contextlib.asynccontextmanager
    async def _admitted(self, num_chars: int) -> AsyncIterator[None]:
        """Admit a call with so many characters, and end it at its deadline with DeadlineExceeded. Raises Overloaded."""
        with self._admission.admit(num_tokens=estimated_tokens(num_chars)):
            async with within(earliest_deadline(self._timeout_s)):
                yield


def _with_files(message: dict[str, Any], files: Iterator[MediaItem]) -> dict[str, Any]:
    """Return a message whose images are the next of `files`."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [part if media_of_part("", part) is None else media_part(next(files)) for part in content]
    return {**message, "content": parts}
