"""Media catalogue: the requests of the load on a model that reads images, videos or audio, as a pure function of a seed.

Media come from a small pool: requests hit the prefix cache, and the tokenizer's and the worker's caches of media. Each kind
of request stands here once, beside requests of text alone. Knows the fields of the HTTP API, nothing of connections.
"""

import base64
import random
from collections.abc import Callable, Sequence

from tests.chaos.answers import Answer
from tests.chaos.catalogue import CHAT, COMPLETIONS, RESPONSES, WORDS, Body, Request, Sizes
from tests.pictures import picture
from tests.sounds import sound
from tests.video_files import video

_NUM_ITEMS = 6
_PICTURE_FORMS = ("PNG", "JPEG", "WEBP", "GIF")
_SOUND_FORMS = ("wav", "mp3", "flac", "ogg")
_MEDIA_TYPES = {"image": "image/png", "audio": "audio/wav", "video": "video/mp4"}
Part = dict[str, object]


class MediaCatalogue:
    """Makes requests.

    Args:
        model: name to ask for.
        seed: of everything drawn.
        sizes: how long the outputs are, and the long prompts.
        modality: "image", "audio" or "video".
    """

    def __init__(self, model: str, seed: int, sizes: Sizes, modality: str = "image") -> None:
        self._model, self._sizes, self._modality = model, sizes, modality
        self._rng = random.Random(seed)
        make = {"image": self._image, "audio": self._sound, "video": self._video}[modality]
        self._items = [make(index) for index in range(_NUM_ITEMS)]
        self._kinds: Sequence[tuple[str, Callable[[], Body]]] = [
            (CHAT, self._greedy),
            (CHAT, self._seeded),
            (CHAT, self._several),
            (CHAT, self._logprobs),
            (CHAT, self._first_in_the_prompt),
            (CHAT, self._behind_a_long_text),
            (CHAT, self._many),
            (CHAT, self._named),
            (CHAT, self._large),
            (CHAT, self._broken),
            (CHAT, self._text_alone),
            (COMPLETIONS, self._ids_alone),
            (RESPONSES, self._kept) if modality == "image" else (CHAT, self._greedy),
        ]
        assert len(self._kinds) % 2, "each kind streams half the time"

    def make(self, number: int) -> list[Request]:
        """Return `number` requests, of each kind about as many; every other one is a stream."""
        return [self._request(index) for index in range(number)]

    def stopped(self, request: Request, answer: Answer) -> Request | None:
        """Return None: the texts of random tokens have hardly a character for a stop string."""

    def predicted(self, request: Request, answer: Answer) -> Request | None:
        """Return None, as for stop strings."""

    def _request(self, index: int) -> Request:
        path, kind = self._kinds[index % len(self._kinds)]
        tokens = self._rng.randint(self._sizes.min_tokens, self._sizes.max_tokens)
        body: Body = {"model": self._model, "seed": self._rng.getrandbits(31), "temperature": 0.8} | kind()
        name = f"{kind.__name__.strip('_')}-{index}"
        if path == RESPONSES:
            return Request(name, path, body | {"max_output_tokens": max(tokens, 16)})
        body |= {"max_tokens": tokens, "ignore_eos": True, "return_token_ids": True}
        if index % 2:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            name += "-stream"
        return Request(name, path, body, fails=kind == self._broken)

    # --- kinds ------------------------------------------------------------------------------------------------------

    def _greedy(self) -> Body:
        return {"temperature": 0, **_asked(self._text(), self._drawn(), self._text())}

    def _seeded(self) -> Body:
        return {"top_p": 0.95, **_asked(self._text(), self._drawn(), self._drawn(), self._text())}

    def _several(self) -> Body:
        return {"n": self._rng.randint(2, 4), **_asked(self._drawn(), self._text())}

    def _logprobs(self) -> Body:
        return {"logprobs": True, "top_logprobs": 4, **_asked(self._text(), self._drawn())}

    def _first_in_the_prompt(self) -> Body:
        """Requests with the same item share blocks of it."""
        return _asked(self._drawn(), self._text())

    def _behind_a_long_text(self) -> Body:
        characters = self._rng.randint(self._sizes.long_prompt_tokens // 2, self._sizes.long_prompt_tokens)
        return _asked(("lamps and dogs " * (characters // 15 + 1))[:characters], self._drawn())

    def _many(self) -> Body:
        return _asked(*(self._drawn() for _ in range(5)), self._text())

    def _named(self) -> Body:
        """An item under a name of the client's own."""
        number = self._rng.randrange(_NUM_ITEMS)
        return _asked(self._text(), self._part(self._items[number]) | {"uuid": f"{self._modality} {number}"})

    def _large(self) -> Body:
        number = self._rng.randrange(3)
        make = {
            "image": lambda: picture(1600, 1200, number, "JPEG"),
            "audio": lambda: sound(5, number),
            "video": lambda: video(48, size=(640, 480), seed=number),
        }[self._modality]
        return _asked(self._part(make()), self._text())

    def _broken(self) -> Body:
        """A file that ends in its header: the request fails alone."""
        item = self._items[0]
        return _asked(self._text(), self._part(item[:40]))

    def _text_alone(self) -> Body:
        return _asked(self._text())

    def _ids_alone(self) -> Body:
        return {"prompt": [self._rng.randint(5, 260) for _ in range(self._rng.randint(1, self._sizes.long_prompt_tokens))]}

    def _kept(self) -> Body:
        image = {"type": "input_image", "image_url": self._url(self._rng.choice(self._items))}
        content = [{"type": "input_text", "text": self._text()}, image]
        return {"input": [{"role": "user", "content": content}], "store": True}

    # --- parts ------------------------------------------------------------------------------------------------------

    def _text(self) -> str:
        return " ".join(self._rng.choices(WORDS, k=self._rng.randint(3, 30)))

    def _drawn(self) -> Part:
        return self._part(self._rng.choice(self._items))

    def _part(self, data: bytes) -> Part:
        kind = f"{self._modality}_url"
        return {"type": kind, kind: {"url": self._url(data)}}

    def _url(self, data: bytes) -> str:
        return f"data:{_MEDIA_TYPES[self._modality]};base64,{base64.b64encode(data).decode()}"

    def _image(self, index: int) -> bytes:
        width, height = self._rng.randint(20, 200), self._rng.randint(20, 200)
        return picture(width, height, self._rng.getrandbits(31), _PICTURE_FORMS[index % len(_PICTURE_FORMS)])

    def _sound(self, index: int) -> bytes:
        form = _SOUND_FORMS[index % len(_SOUND_FORMS)]
        return sound(self._rng.uniform(0.2, 1.5), self._rng.getrandbits(31), form)

    def _video(self, index: int) -> bytes:
        return video(4 + 2 * index, size=(64, 48), seed=self._rng.getrandbits(31))


def _asked(*parts: str | Part) -> Body:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"messages": [{"role": "user", "content": content}]}
