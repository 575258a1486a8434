"""Prompt media: preprocesses the media of requests, and encodes the prompts that have them.

Called by the servicer, which runs `PromptMedia.encode` in a thread. Knows tokens and features; knows no protobuf.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.media.attended import AttendedMedia
from tetrad.tokenizer_svc.media.expansion import expand_ids, expand_text, repeat_marks, shorten
from tetrad.tokenizer_svc.media.items import Marks, MediaFeature, MediaInput, PlacedMedia
from tetrad.tokenizer_svc.media.kinds import IO
from tetrad.tokenizer_svc.media.message_room import MessageRoom
from tetrad.tokenizer_svc.media.preprocessor import Preprocessor
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer, Truncation

_KWARGS, _IO_KWARGS = "mm_processor_kwargs_json", "media_io_kwargs_json"


@dataclass(frozen=True)
class MediaLimits:
    """Limits of one modality: items of a prompt, and embeddings of the largest item."""

    modality: str
    max_items: int
    max_embeds: int


@dataclass(frozen=True)
class PromptMedia:
    """The media of one prompt.

    Attributes:
        tokenizer: the model's tokenizer.
        features: the items; those of each modality are in the order of their placeholders.
        marks: how the prompt writes each of their modalities.
    """

    tokenizer: Tokenizer
    features: Sequence[MediaFeature]
    marks: Mapping[str, Marks]

    def encode(
        self, text: str, *, add_special_tokens: bool, truncation: Truncation | None, field: str
    ) -> tuple[list[int], list[PlacedMedia]]:
        """Return the ids of a prompt with its placeholders expanded, and the places of its items.

        Raises:
            InvalidRequest: placeholders and items differ in number, or an item would be cut. `field` is the prompt's.
        """
        expanded, features = expand_text(text, self.features, self.marks, field=field)
        encoded, num_around = self.tokenizer.encode_whole(expanded, add_special_tokens=add_special_tokens)
        token_ids, placed = repeat_marks(encoded, features, self.marks, field=field)
        return (token_ids, placed) if truncation is None else shorten(token_ids, placed, truncation, num_around)

    def encode_ids(
        self, token_ids: Sequence[int], *, truncation: Truncation | None, field: str
    ) -> tuple[list[int], list[PlacedMedia]]:
        """Return the ids of a prompt of ids, as `encode` does for a text."""
        placeholders = {modality: self._encode(each.placeholder) for modality, each in self.marks.items()}
        expansions = {text: self._encode(text) for text in {feature.expansion.text for feature in self.features}}
        expanded, features = expand_ids(token_ids, placeholders, self.features, expansions, self.marks, field=field)
        repeated, placed = repeat_marks(expanded, features, self.marks, field=field)
        return (repeated, placed) if truncation is None else shorten(repeated, placed, truncation, (0, 0))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)


class ModelMedia:
    """Preprocesses the media of one model.

    Args:
        tokenizer: the model's tokenizer.
        model: the model's name.
        preprocessors: by modality; owned by this object.
        reasons: why modalities that the model takes cannot be read.
        max_message_bytes: maximum bytes of a prompt's preprocessed items together.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        model: str,
        preprocessors: Mapping[str, Preprocessor],
        reasons: Mapping[str, str],
        *,
        max_message_bytes: int,
    ) -> None:
        self._tokenizer, self._model = tokenizer, model
        self._preprocessors, self._reasons = preprocessors, reasons
        self._max_message_bytes = max_message_bytes

    @property
    def message_texts(self) -> Mapping[str, str]:
        """Texts of items in messages for templates that read only texts, by modality."""
        return {name: each.rules.message_text for name, each in self._preprocessors.items()}

    @property
    def limits(self) -> Sequence[MediaLimits]:
        """Limits of the modalities that are preprocessed."""
        return [MediaLimits(name, each.max_items, each.rules.max_embeds) for name, each in self._preprocessors.items()]

    def check_numbers(self, numbers: Mapping[str, int]) -> None:
        """Raise InvalidRequest if a prompt cannot have this many items by modality; called before the prompt is rendered."""
        for modality, number in numbers.items():
            preprocessor = self._preprocessors.get(modality)
            if preprocessor is None:
                raise InvalidRequest(self._refusal(modality), field="media")
            most = preprocessor.max_items
            if number > most:
                text = f"At most {most} {modality}(s) may be provided in one prompt. There are {number}"
                raise InvalidRequest(f"{text} (max_{modality}s_per_prompt).", field="media")

    async def preprocess(
        self, items: Sequence[MediaInput], kwargs_json: str, io_kwargs_json: str = ""
    ) -> PromptMedia | AttendedMedia:
        """Return the media of one prompt, in their order.

        Args:
            items: the items; `check_numbers` has taken their numbers.
            kwargs_json: settings of the processors, a JSON object; empty: none.
            io_kwargs_json: settings of reading files, a JSON object by modality; empty: none.

        Raises:
            InvalidRequest: an item or a setting is refused, or the features do not fit a message together.
        """
        numbers = Counter(item.modality for item in items)
        kwargs = self._kwargs(kwargs_json, numbers)
        for modality, given in self._io_kwargs(io_kwargs_json, numbers).items():
            kwargs[modality] = {**kwargs[modality], IO: given}
        room = MessageRoom(len(items), self._max_message_bytes)

        async def fitting(i: int, item: MediaInput, index: int) -> MediaFeature:
            maker = self._preprocessors[item.modality]
            feature = await maker.feature(item, kwargs[item.modality], index=index, field=f"media[{i}]")
            room.take(feature.item.size_bytes)
            return feature

        seen: Counter[str] = Counter()
        works = []
        try:
            async with asyncio.TaskGroup() as group:
                for i, item in enumerate(items):
                    works.append(group.create_task(fitting(i, item, seen[item.modality])))
                    seen[item.modality] += 1
        except ExceptionGroup as failed:  # the answer is the first error; the other items are left
            raise failed.exceptions[0] from None
        features, rules = [work.result() for work in works], {name: self._preprocessors[name].rules for name in numbers}
        start_id = next((each.start_id for each in rules.values() if each.start_id is not None), None)
        if start_id is not None:
            return AttendedMedia(self._tokenizer, features, start_id)
        return PromptMedia(self._tokenizer, features, {modality: each.marks for modality, each in rules.items()})

    def reset_cache(self) -> None:
        """Forget the items that were seen."""
        for each in self._preprocessors.values():
            each.reset_cache()

    async def close(self) -> None:
        """Stop all processes."""
        await asyncio.gather(*(each.close() for each in self._preprocessors.values()))

    def _refusal(self, modality: str) -> str:
        if modality in self._reasons:
            return self._reasons[modality]
        if not self._preprocessors:
            return f"{self._model} is not a multimodal model"
        taken = " and ".join(self._preprocessors)
        return f"At most 0 {modality}(s) may be provided in one prompt: {self._model} takes {taken} input only."

    def _kwargs(self, text: str, numbers: Mapping[str, int]) -> dict[str, Mapping[str, Any]]:
        """Return the settings of each modality of a prompt. Raises InvalidRequest for others than the model takes."""
        given = _parsed(text, _KWARGS)
        makers = {modality: self._preprocessors[modality] for modality in numbers}
        taken = dict.fromkeys(name for maker in makers.values() for name in maker.kwargs)
        if unknown := given.keys() - taken.keys():
            what = ", ".join(taken) or "none"
            raise InvalidRequest(f"mm_processor_kwargs has {min(unknown)!r}; this model takes {what}.", field=_KWARGS)
        return {
            modality: maker.rules.prompt_kwargs(
                {name: value for name, value in given.items() if name in maker.kwargs}, numbers[modality]
            )
            for modality, maker in makers.items()
        }

    def _io_kwargs(self, text: str, numbers: Mapping[str, int]) -> dict[str, Mapping[str, Any]]:
        """Return the settings of reading the files of each modality. Raises InvalidRequest for others than there are."""
        given = _parsed(text, _IO_KWARGS)
        for modality, settings in given.items():
            if modality not in numbers:
                text = f"media_io_kwargs has settings of {modality!r:.40}, of which the prompt has none."
                raise InvalidRequest(text, field=_IO_KWARGS)
            taken = self._preprocessors[modality].io_kwargs
            if not isinstance(settings, dict) or settings.keys() - set(taken):
                unknown = min(settings.keys() - set(taken)) if isinstance(settings, dict) else settings
                text = f"media_io_kwargs has {unknown!r:.40} for {modality}; it takes {', '.join(taken) or 'none'}."
                raise InvalidRequest(text, field=_IO_KWARGS)
        return given


def _parsed(text: str, field: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        kwargs = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{field} is not JSON: {error}.", field=field) from error
    if not isinstance(kwargs, dict):
        raise InvalidRequest(f"{field} is not a JSON object.", field=field)
    return kwargs
