"""Prompt embeddings over HTTP: decodes base64 of safetensors files in the bodies of completions and chats.

Needs `--enable-prompt-embeds`. vLLM accepts files of torch.save, which are pickles; these are refused here. Large files are
decoded on a thread, outside of the event loop.
"""

import asyncio
import base64
import binascii
from collections.abc import Sequence
from functools import partial

from tetrad.frontend.request.prompt_embeds import PromptEmbeds, embeds_of_safetensors
from tetrad.services.errors import InvalidRequest

_SMALL_CHARS = 1 << 16
_FIELD = "prompt_embeds"


async def decode_embeds(given: str | Sequence[str] | None, *, enabled: bool, echoes: bool, most: int) -> list[PromptEmbeds]:
    """Return the embeddings in a body's field; an empty list if it is absent or empty.

    Args:
        given: value of the field.
        enabled: whether the server accepts embeddings.
        echoes: whether the body has `echo`.
        most: maximum number of prompts of a body.

    Raises:
        InvalidRequest: embeddings are not accepted, or are invalid.
    """
    texts = [given] if isinstance(given, str) else given or []
    if not texts:
        return []
    check_embeds_allowed(_FIELD, enabled=enabled, echoes=echoes)
    if len(texts) > most:
        raise InvalidRequest(f"prompt_embeds may hold at most {most} prompts, got {len(texts)}.", field=_FIELD)
    return await decode_files([(_FIELD, text) for text in texts])


def check_embeds_allowed(field: str, *, enabled: bool, echoes: bool) -> None:
    """Refuse embeddings if the server does not accept them, or if the body has `echo`; see decode_embeds."""
    if not enabled:
        raise InvalidRequest("You must set `--enable-prompt-embeds` to input `prompt_embeds`.", field=field)
    if echoes:
        raise InvalidRequest("Echo is unsupported with prompt embeds.", field="echo")


async def decode_files(files: Sequence[tuple[str, str]]) -> list[PromptEmbeds]:
    """Return the embeddings of safetensors files, each given as (field of the body, base64); InvalidRequest names the field."""
    if sum(len(text) for _, text in files) <= _SMALL_CHARS:
        return [_decoded(*file) for file in files]
    return await asyncio.to_thread(lambda: [_decoded(*file) for file in files])


def _decoded(field: str, text: str) -> PromptEmbeds:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"`prompt_embeds` is not base64: {error}.", field=field) from None
    return embeds_of_safetensors(data, refuse=partial(InvalidRequest, field=field))
