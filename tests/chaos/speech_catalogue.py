"""Speech catalogue: makes the requests of a chaos run to Whisper, which transcribes recordings, from a seed.

Recordings come from a small pool: requests hit the prefix cache, and the tokenizer's and the worker's caches of media. Knows
the fields of /v1/audio, nothing of connections.
"""

import random
from collections.abc import Callable, Sequence

from tests.chaos.answers import Answer
from tests.chaos.catalogue import COMPLETIONS, WORDS, Body, Request, Sizes
from tests.sounds import sound

_TRANSCRIPTIONS, _TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
_NUM_FILES = 6
_FORMS = ("wav", "mp3", "flac", "ogg")
_LONG_S = 14.0


class SpeechCatalogue:
    """Makes requests.

    Args:
        model: name to ask for.
        seed: of everything drawn.
        sizes: how long the outputs are.
        piece_s: seconds that the model reads at once.
    """

    def __init__(self, model: str, seed: int, sizes: Sizes, *, piece_s: float) -> None:
        self._model, self._sizes = model, sizes
        self._rng = random.Random(seed)
        self._files = [self._sound(index, piece_s) for index in range(_NUM_FILES)]
        self._kinds: Sequence[tuple[str, Callable[[], Body]]] = [
            (_TRANSCRIPTIONS, self._text),
            (_TRANSCRIPTIONS, self._unknown_language),
            (_TRANSLATIONS, self._text),
            (_TRANSCRIPTIONS, self._seeded),
            (_TRANSCRIPTIONS, self._behind_a_text),
            (_TRANSCRIPTIONS, self._segments),
            (_TRANSLATIONS, self._seeded),
            (_TRANSCRIPTIONS, self._subtitles),
            (_TRANSCRIPTIONS, self._long),
            (_TRANSCRIPTIONS, self._long_segments),
            (_TRANSCRIPTIONS, self._broken),
            (_TRANSCRIPTIONS, self._text),
            (COMPLETIONS, self._without_audio),
        ]
        assert len(self._kinds) % 2, "each kind streams half the time"

    def make(self, number: int) -> list[Request]:
        """Return `number` requests, of each kind about as many; every other one is a stream, if it can be."""
        return [self._request(index) for index in range(number)]

    def stopped(self, request: Request, answer: Answer) -> Request | None:
        """Return None: /v1/audio has no stop strings."""

    def predicted(self, request: Request, answer: Answer) -> Request | None:
        """Return None: /v1/audio has no predictions."""

    def _request(self, index: int) -> Request:
        path, kind = self._kinds[index % len(self._kinds)]
        name = f"{kind.__name__.strip('_')}-{index}"
        body: Body = {"model": self._model} | kind()
        if path == COMPLETIONS:
            return Request(name, path, body, fails=True)
        file: bytes = body.pop("file", None) or self._rng.choice(self._files)
        body["max_completion_tokens"] = self._rng.randint(self._sizes.min_tokens, self._sizes.max_tokens)
        if index % 2 and "response_format" not in body:
            body |= {"stream": True, "stream_include_usage": True}
            name += "-stream"
        return Request(name, path, body, file=file, fails=kind == self._broken)

    # --- kinds ------------------------------------------------------------------------------------------------------

    def _text(self) -> Body:
        return {"language": "de"}

    def _unknown_language(self) -> Body:
        """One request more, for the language."""
        return {}

    def _seeded(self) -> Body:
        return {"language": "en", "temperature": 0.8, "seed": self._rng.getrandbits(31), "top_p": 0.95}

    def _behind_a_text(self) -> Body:
        return {"language": "fr", "prompt": " ".join(self._rng.choices(WORDS, k=self._rng.randint(3, 30)))}

    def _segments(self) -> Body:
        return {"language": "de", "response_format": "verbose_json", "timestamp_granularities[]": "word"}

    def _subtitles(self) -> Body:
        return {"language": "de", "response_format": self._rng.choice(("srt", "vtt"))}

    def _long(self) -> Body:
        return {"language": "de", "file": sound(_LONG_S, self._rng.randrange(3), "mp3")}

    def _long_segments(self) -> Body:
        return {"response_format": "verbose_json", "file": sound(_LONG_S, self._rng.randrange(3), "mp3")}

    def _broken(self) -> Body:
        """A file that ends in its header: the request fails alone."""
        return {"language": "de", "file": self._files[0][:40]}

    def _without_audio(self) -> Body:
        """A request without audio, which the model cannot answer."""
        return {"prompt": " ".join(self._rng.choices(WORDS, k=9))}

    def _sound(self, index: int, piece_s: float) -> bytes:
        seconds = piece_s * self._rng.uniform(0.1, 2.5)
        return sound(seconds, self._rng.getrandbits(31), _FORMS[index % len(_FORMS)])
