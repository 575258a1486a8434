"""PromptReader: converts a prompt in its normal form to token ids, with the features of its images, and truncates it."""

from dataclasses import replace

from tetrad.frontend.llm.served_model import ServedModel
from tetrad.frontend.media.features import MediaFeature, kept_features
from tetrad.frontend.media.loader import MediaLoader
from tetrad.frontend.request.prompts import Prompt
from tetrad.frontend.tokenizer.client import TokenizerClient
from tetrad.services.errors import InvalidRequest


class PromptReader:
    """Reads the prompts of one model.

    Args:
        tokenizer: encodes texts and preprocesses images.
        model: limits texts and images.
        media: reads the files of images.
    """

    def __init__(self, tokenizer: TokenizerClient, model: ServedModel, media: MediaLoader) -> None:
        self._tokenizer, self._model, self._media = tokenizer, model, media

    async def read(self, prompt: Prompt, *, most: int | None, keep_end: bool, add_special_tokens: bool) -> Prompt:
        """Return a prompt with its ids, in which images are expanded placeholders, and with the images' features.

        Args:
            prompt: text, ids or embeddings.
            most: maximum number of tokens to keep; None: all.
            keep_end: whether the last tokens are kept, else the first.
            add_special_tokens: add BOS and the like to a text.

        Raises:
            InvalidRequest: the text is empty or too long, an image cannot be read or would be cut, or embeddings would be cut.
            Overloaded: too many images are being fetched.
        """
        if prompt.embeds is not None and most is not None:
            text = "truncate_prompt_tokens is not compatible with prompt embeds."
            raise InvalidRequest(text, field="truncate_prompt_tokens")
        if prompt.token_ids is not None and not prompt.media:
            return _kept(prompt, prompt.token_ids, prompt.features, most, keep_end)
        text = prompt.text or ""
        # Beside media, the prompt may be a decoder's start token alone, which the tokenizer writes.
        if prompt.token_ids is None and (text or not prompt.media):
            self._model.limits.check_text(text, is_truncated=most is not None)
        elif prompt.token_ids is not None:
            self._model.limits.check_prompt(prompt.token_ids)
        self._model.media.check(prompt.media, kwargs=prompt.mm_processor_kwargs, io_kwargs=prompt.media_io_kwargs)
        if prompt.media:
            return await self._read_with_media(prompt, most, keep_end, add_special_tokens)
        [ids] = await self._tokenizer.encode([text], add_special_tokens=add_special_tokens, max_tokens=most, keep_end=keep_end)
        return replace(prompt, token_ids=ids, features=())

    async def _read_with_media(self, prompt: Prompt, most: int | None, keep_end: bool, add_special_tokens: bool) -> Prompt:
        files = await self._media.load(prompt.media, prompt.cache_salt)
        given = prompt.text or "" if prompt.token_ids is None else prompt.token_ids
        ids, features = await self._tokenizer.encode_with_media(
            given, files, prompt.mm_processor_kwargs, prompt.media_io_kwargs, add_special_tokens=add_special_tokens
        )
        return _kept(prompt, ids, features, most, keep_end)


def _kept(prompt: Prompt, ids: list[int], features: tuple[MediaFeature, ...], most: int | None, keep_end: bool) -> Prompt:
    cut = kept_features(features, len(ids), most, keep_end)
    return replace(prompt, token_ids=kept(ids, most, keep_end), features=cut)


def kept(ids: list[int], most: int | None, keep_end: bool) -> list[int]:
    """Return at most `most` ids: the last ones if `keep_end`, else the first. None: all ids."""
    if most is None or len(ids) <= most:
        return ids
    return ids[-most:] if keep_end else ids[:most]
