"""Prompts: converts the forms in which callers give a prompt to one form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

from tetrad.frontend.media.features import MediaFeature
from tetrad.frontend.media.items import MediaSource
from tetrad.frontend.media.prompt_media import checked_kwargs, sources_of
from tetrad.frontend.request.admission import estimated_tokens
from tetrad.frontend.request.encoder_decoder import EncoderDecoderPrompt, has_two_parts, joined
from tetrad.frontend.request.prompt_embeds import PromptEmbeds, embeds_of_tensor
from tetrad.frontend.request.sampling_values import check_text
from tetrad.services.errors import InvalidRequest


class TextPrompt(TypedDict):
    """A prompt as text, to be tokenized.

    Its images are in vLLM's fields: `multi_modal_data` {"image": bytes of a file, or a list}, in the order of the placeholders
    in the text, `multi_modal_uuids` {"image": name or list}, `mm_processor_kwargs`, settings of the model's processor, and
    `media_io_kwargs`, how files are read. Videos are under "video" in the same way.
    """

    prompt: str
    cache_salt: NotRequired[str]
    multi_modal_data: NotRequired[Mapping[str, Any] | None]
    multi_modal_uuids: NotRequired[Mapping[str, Any] | None]
    mm_processor_kwargs: NotRequired[Mapping[str, Any] | None]
    media_io_kwargs: NotRequired[Mapping[str, Any] | None]


class TokensPrompt(TypedDict):
    """A prompt as token ids; `prompt` is its text, if known, and `mm_features` are its preprocessed media, if it has any.

    Images that are not preprocessed are in the fields of TextPrompt; the ids have a placeholder for each.
    """

    prompt_token_ids: list[int]
    prompt: NotRequired[str | None]
    cache_salt: NotRequired[str]
    mm_features: NotRequired[Sequence[MediaFeature]]
    multi_modal_data: NotRequired[Mapping[str, Any] | None]
    multi_modal_uuids: NotRequired[Mapping[str, Any] | None]
    mm_processor_kwargs: NotRequired[Mapping[str, Any] | None]
    media_io_kwargs: NotRequired[Mapping[str, Any] | None]


class EmbedsPrompt(TypedDict):
    """A prompt as embeddings: a torch tensor or numpy array [positions, hidden_size]; `prompt` is its text, if known.

    PromptEmbeds may cover some positions only; `prompt_token_ids` then has the ids of all positions, 0 for embeddings.
    """

    prompt_embeds: Any
    prompt_token_ids: NotRequired[list[int]]
    prompt: NotRequired[str | None]
    cache_salt: NotRequired[str]


PromptType = str | list[int] | TextPrompt | TokensPrompt | EmbedsPrompt | EncoderDecoderPrompt

_KEYS = (
    "prompt, prompt_token_ids, prompt_embeds, multi_modal_data, multi_modal_uuids, mm_processor_kwargs, media_io_kwargs and "
    "cache_salt"
)
_MEDIA_KEYS = ("mm_features", "multi_modal_data", "multi_modal_uuids", "encoder_prompt", "decoder_prompt")
_MAX_SALT_CHARS = 128
_SALT_FORBIDDEN = frozenset("@/\\\0")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in its normal form: text, ids, or both. An absent part is None. Positions with embeddings have the id 0.

    Attributes:
        media: the images of a text that is to be tokenized.
        mm_processor_kwargs: settings of the model's media processor.
        media_io_kwargs: how files are read, by modality.
        features: the preprocessed media of a prompt of ids.
    """

    text: str | None
    token_ids: list[int] | None
    cache_salt: str = ""
    embeds: PromptEmbeds | None = None
    media: tuple[MediaSource, ...] = ()
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict)
    media_io_kwargs: Mapping[str, Any] = field(default_factory=dict)
    features: tuple[MediaFeature, ...] = ()

    @property
    def ids(self) -> list[int]:
        """The ids of a prompt that has been tokenized."""
        assert self.token_ids is not None
        return self.token_ids


def normalize_prompt(prompt: PromptType, *, cache_salt: str = "") -> Prompt:
    """Return `prompt` in its normal form; InvalidRequest if it has none of the forms of PromptType."""
    if isinstance(prompt, str):
        return Prompt(_checked_text(prompt), None, _checked_salt(cache_salt))
    if isinstance(prompt, list | tuple):
        return Prompt(None, _checked_ids(list(prompt)), _checked_salt(cache_salt))
    if not isinstance(prompt, dict):
        raise _wrong(f"A prompt is a string, a list of token ids, a TextPrompt or a TokensPrompt, got {type(prompt).__name__}.")
    fields: dict[str, Any] = joined(prompt) if has_two_parts(prompt) else dict(prompt)
    salt = _checked_salt(str(fields.pop("cache_salt", None) or cache_salt))
    text, ids = fields.pop("prompt", None), fields.pop("prompt_token_ids", None)
    given = fields.pop("prompt_embeds", None)
    features = tuple(fields.pop("mm_features", None) or ())
    media = sources_of(fields.pop("multi_modal_data", None), fields.pop("multi_modal_uuids", None))
    names = ("mm_processor_kwargs", "media_io_kwargs")
    kwargs: dict[str, Any] = {name: checked_kwargs(fields.pop(name, None), name) for name in names}
    if fields:
        raise _wrong(f"A prompt has no key {min(fields)!r}; it may have {_KEYS}.")
    if media and (given is not None or features):
        text = "multi_modal_data needs a prompt of text or of ids, whose placeholders it fills."
        raise InvalidRequest(text, field="multi_modal_data")
    if given is not None:
        embeds = given if isinstance(given, PromptEmbeds) else embeds_of_tensor(given)
        if ids is not None and not embeds.is_token_ids:
            raise _wrong("A prompt has either prompt_token_ids or prompt_embeds.")
        ids = [0] * embeds.num_rows if ids is None else _checked_ids(ids)
        return Prompt(text if isinstance(text, str) else None, ids, salt, embeds)
    if ids is not None:
        known = text if isinstance(text, str) else None
        return Prompt(known, _checked_ids(ids), salt, media=media, features=features, **kwargs)
    if text is None:
        raise _wrong("A prompt needs `prompt`, `prompt_token_ids` or `prompt_embeds`.")
    return Prompt(_checked_text(text), None, salt, media=media, **kwargs)


def has_media(prompt: PromptType) -> bool:
    """Return whether a prompt has fields of media; also for prompts that are invalid."""
    return isinstance(prompt, dict) and not prompt.keys().isdisjoint(_MEDIA_KEYS)


def estimated_prompt_tokens(prompt: PromptType) -> int:
    """Return an estimate of a prompt's number of tokens from its size only; also for prompts that are invalid."""
    given: object = prompt
    if isinstance(prompt, dict):
        embeds = prompt.get("prompt_embeds")
        if embeds is not None:
            shape = getattr(embeds, "shape", ())
            return embeds.num_positions if isinstance(embeds, PromptEmbeds) else max([1, *shape[-2:-1]])
        given = prompt.get("prompt_token_ids") or prompt.get("prompt")
    if isinstance(given, str):
        return estimated_tokens(len(given))
    return len(given) if isinstance(given, list | tuple) else 1


def _checked_text(text: object) -> str:
    if not isinstance(text, str):
        raise _wrong(f"prompt must be a string, got {type(text).__name__}.")
    check_text("prompt", text)
    return text


def _checked_ids(ids: object) -> list[int]:
    if not isinstance(ids, list | tuple):
        raise _wrong(f"prompt_token_ids must be a list of integers, got {type(ids).__name__}.")
    for value in ids:
        if type(value) is not int:
            raise _wrong(f"prompt_token_ids must contain only integers, got {value!r}.")
    return list(ids)


def _checked_salt(salt: str) -> str:
    if len(salt) > _MAX_SALT_CHARS or _SALT_FORBIDDEN & set(salt):
        text = f"cache_salt must have at most {_MAX_SALT_CHARS} characters and none of @ / \\ NUL, got {salt[:32]!r}."
        raise InvalidRequest(text, field="cache_salt")
    check_text("cache_salt", salt)
    return salt


def _wrong(text: str) -> InvalidRequest:
    return InvalidRequest(text, field="prompt")
