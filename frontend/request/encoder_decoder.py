"""Encoder-decoder prompts: converts vLLM's prompts of two parts to prompts of one, with the media of the first.

Of models with an encoder and a decoder, those that are served here have encoders of media alone.
"""

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from tetrad.services.errors import InvalidRequest

_ENCODER, _DECODER = "encoder_prompt", "decoder_prompt"
_DATA = "multi_modal_data"
_OF_TEXT = ("prompt", "prompt_token_ids")
_OF_ENCODER = (*_OF_TEXT, _DATA, "multi_modal_uuids", "mm_processor_kwargs", "cache_salt")


class EncoderDecoderPrompt(TypedDict):
    """A prompt of two parts: `encoder_prompt` has the media and no text, `decoder_prompt` is a text, ids or a dict of them.

    Without a decoder's prompt, generation begins after the model's start token.
    """

    encoder_prompt: Mapping[str, Any]
    decoder_prompt: NotRequired[str | list[int] | Mapping[str, Any] | None]


def has_two_parts(prompt: object) -> bool:
    """Return whether a prompt is an EncoderDecoderPrompt."""
    return isinstance(prompt, dict) and (_ENCODER in prompt or _DECODER in prompt)


def joined(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Return a prompt of two parts as a TextPrompt or TokensPrompt with media. InvalidRequest: the parts are not as above."""
    if other := sorted(prompt.keys() - {_ENCODER, _DECODER}):
        raise InvalidRequest(f"A prompt with {_ENCODER} has no key {other[0]!r} but {_DECODER}.", field="prompt")
    encoder, decoder = prompt.get(_ENCODER), prompt.get(_DECODER)
    if not isinstance(encoder, Mapping) or not encoder.get(_DATA):
        text = f"{_ENCODER} needs {_DATA}: encoders of media are supported, and no encoders of text"
        raise InvalidRequest(f"{text}; a model without an encoder takes a prompt of one part.", field=_ENCODER)
    if other := sorted(encoder.keys() - set(_OF_ENCODER)):
        raise InvalidRequest(f"{_ENCODER} has no key {other[0]!r}; it may have {', '.join(_OF_ENCODER)}.", field=_ENCODER)
    if written := next((name for name in _OF_TEXT if encoder.get(name)), None):
        raise InvalidRequest(f"{_ENCODER} has {written}, which no encoder reads; leave it empty.", field=_ENCODER)
    media = {name: value for name, value in encoder.items() if name not in _OF_TEXT}
    return {**media, **_decoder_fields(decoder)}


def _decoder_fields(decoder: object) -> dict[str, Any]:
    if decoder is None or isinstance(decoder, str):
        return {"prompt": decoder or ""}
    if isinstance(decoder, list | tuple):
        return {"prompt_token_ids": list(decoder)}
    if not isinstance(decoder, Mapping):
        text = f"{_DECODER} is a text, a list of token ids or a dict of them, got {type(decoder).__name__}."
        raise InvalidRequest(text, field=_DECODER)
    if decoder.get(_DATA):
        raise InvalidRequest(f"Cannot pass multi-modal inputs to decoder prompt; {_ENCODER} takes {_DATA}.", field=_DECODER)
    return {name: value for name, value in decoder.items() if name != _DATA}
