"""Whisper's prompts: <|startofprev|> earlier text <|startoftranscript|> <|language|> <|task|> <|notimestamps|>.

A prompt without the last token lets the model write timestamps.

Source: openai/whisper's decoding.py, and transformers' models/whisper/generation_whisper.py. The encoder reads the audio, so a
piece takes no token of the prompt.
"""

import re
from collections.abc import Mapping, Sequence

from tetrad.services.errors import InvalidRequest, ModelError
from tetrad.tokenizer_svc.media.items import Expansion, MediaFeature, PlacedMedia, ProcessedItem
from tetrad.tokenizer_svc.speech.plans import Detection, PromptPlan, Silence, SpeechRequest, Task, WritingRules
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer

_START, _PREVIOUS, _NO_TIMES, _FIRST_TIME = "<|startoftranscript|>", "<|startofprev|>", "<|notimestamps|>", "<|0.00|>"
_NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")
"""Names of the token behind the start whose probability is that of silence; older files have the second one."""
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_ENGLISH = "en"
_STEP_S = 0.02
_MAX_INITIAL = 50
"""Largest first timestamp of models whose files name none: 1 s."""
_LENGTH_KEY = "max_target_positions"


class WhisperPrompts:
    """The prompts of one model.

    Args:
        tokenizer: the model's tokenizer.

    Raises ModelError if the tokenizer lacks tokens of Whisper.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._languages = _languages(tokenizer)
        self._start, self._no_times = self._required(_START), self._required(_NO_TIMES)
        self._previous = tokenizer.token_id(_PREVIOUS)
        self._no_speech = next(filter(None, map(tokenizer.token_id, _NO_SPEECH)), None)
        facts = tokenizer.facts
        self._num_ids = int(facts.config["vocab_size"])
        self._first_time = self._first_timestamp()
        self._is_multilingual = bool(self._languages) and facts.generation_config.get("is_multilingual") is not False
        self.tasks: Sequence[Task] = ("transcribe", "translate") if self._is_multilingual else ("transcribe",)
        self._task_ids = {task: self._required(f"<|{task}|>") for task in self.tasks} if self._is_multilingual else {}
        # Half of the decoder's positions are for the text before the recording, as in both sources.
        self._max_prompt_tokens = int(facts.config[_LENGTH_KEY]) // 2 - 1
        self._num_positions = int(facts.config["max_source_positions"])

    def plan(self, request: SpeechRequest) -> PromptPlan:
        """Return how the prompts for a recording are made.

        Raises:
            InvalidRequest: the model does not know a language, or the text before the recording has special tokens.
        """
        language = self._known(request)
        before = [*self._previous_ids(request.prompt), self._start]
        task_ids = [self._task_ids[request.task]] if self._is_multilingual else []
        first_time = self._first_time if request.with_timestamps else None
        known_ids = [self._languages[language]] if self._is_multilingual and language else []
        ids = [*before, *known_ids, *task_ids, *([self._no_times] if first_time is None else [])]
        detects = self._is_multilingual and not language

        def place(item: ProcessedItem, identifier: str) -> tuple[list[int], PlacedMedia]:
            feature = MediaFeature("audio", identifier, item, Expansion("", 1, self._num_positions), None)
            return ids, PlacedMedia(feature, 0, 0, b"")

        return PromptPlan(
            place,
            language=language,
            detection=self._detection() if detects else None,
            language_index=len(before) if detects else None,
            first_timestamp_id=first_time,
            timestamp_step_s=0.0 if first_time is None else _STEP_S,
            rules=self._rules(first_time),
            silence=None if self._no_speech is None else Silence(self._no_speech, len(before) - 1),
        )

    def _rules(self, first_time: int | None) -> WritingRules:
        """Return what the model may write, as generation_config.json says; with timestamps, not the token that forbids them."""
        config = self._tokenizer.facts.generation_config
        forbidden = [] if first_time is None else [self._no_times]
        return WritingRules(
            [*self._ids_of("suppress_tokens"), *forbidden],
            self._ids_of("begin_suppress_tokens"),
            _number(config.get("max_initial_timestamp_index"), _MAX_INITIAL),
        )

    def _ids_of(self, key: str) -> list[int]:
        found = self._tokenizer.facts.generation_config.get(key)
        ids = found if isinstance(found, list) else []
        return [each for each in ids if isinstance(each, int) and 0 <= each < self._tokenizer.vocab_size]

    def _detection(self) -> Detection:
        return Detection([self._start], {token_id: code for code, token_id in self._languages.items()})

    def _known(self, request: SpeechRequest) -> str:
        """Return the code of a request's language; English for a model that knows no other, empty if it is unknown."""
        language, target = request.language.lower(), request.to_language.lower()
        known = list(self._languages) if self._is_multilingual else [_ENGLISH]
        if language and language not in known:
            text = f"Unsupported language: {request.language[:32]!r}. Must be one of {sorted(known)}."
            raise InvalidRequest(text, field="language")
        language = language or ("" if self._is_multilingual else _ENGLISH)
        possible = _ENGLISH if request.task == "translate" else language
        if target and target != possible:
            what = "translates to English only" if request.task == "translate" else "transcribes in the language that is spoken"
            raise InvalidRequest(f"to_language {target[:32]!r} is not supported: this model {what}.", field="to_language")
        return language

    def _previous_ids(self, prompt: str) -> list[int]:
        """Return the ids of the text before a recording, which begin with a mark; of a long text the end."""
        if not prompt.strip():
            return []
        if self._previous is None:
            raise InvalidRequest(f"prompt is not supported: the tokenizer has no token {_PREVIOUS}.", field="prompt")
        ids = self._tokenizer.encode(f" {prompt.strip()}", add_special_tokens=False)
        special = {self._start, self._previous, *self._tokenizer.special_token_ids}
        if found := next((each for each in ids if each in special), None):
            [text] = self._tokenizer.token_strings([found])
            raise InvalidRequest(f"prompt must have no special tokens, got {text!r}.", field="prompt")
        return [self._previous, *ids[-self._max_prompt_tokens :]]

    def _first_timestamp(self) -> int | None:
        """Return the id of the timestamp 0; some tokenizers have no tokens for timestamps, whose ids follow the last one."""
        found = self._tokenizer.token_id(_FIRST_TIME)
        if found is None and self._no_times + 1 < self._num_ids:
            return self._no_times + 1
        return found

    def _required(self, text: str) -> int:
        token_id = self._tokenizer.token_id(text)
        if token_id is None:
            raise ModelError(f"The tokenizer has no token {text}, which Whisper's prompts need.", field="model")
        return token_id


def _number(value: object, default: int) -> int:
    return value if isinstance(value, int) and value >= 0 else default


def _languages(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the id of each language's token by the language's code: those of generation_config.json, else all that exist."""
    listed = tokenizer.facts.generation_config.get("lang_to_id")
    if isinstance(listed, Mapping):
        found = [(text, token_id) for text, token_id in listed.items() if isinstance(token_id, int)]
    else:
        ids = list(tokenizer.special_token_ids)
        found = list(zip(tokenizer.token_strings(ids), ids, strict=True))
    matches = [(_LANGUAGE.fullmatch(str(text)), token_id) for text, token_id in found]
    return {match[1]: token_id for match, token_id in matches if match is not None and 0 <= token_id < tokenizer.vocab_size}
