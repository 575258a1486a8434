"""Image catalogue: the requests of the load on a model that reads images, as a pure function of a seed.

Images come from a small pool: requests hit the prefix cache, and the tokenizer's and the worker's caches of images. Each kind
of request stands here once, beside requests of text alone. Knows the fields of the HTTP API, nothing of connections.
"""

import base64
import random
from collections.abc import Callable, Sequence

from tests.chaos.answers import Answer
from tests.chaos.catalogue import CHAT, COMPLETIONS, RESPONSES, WORDS, Body, Request, Sizes
from tests.pictures import picture

_NUM_IMAGES = 6
_FORMS = ("PNG", "JPEG", "WEBP", "GIF")
Part = dict[str, object]


class ImageCatalogue:
    """Makes requests.

    Args:
        model: name to ask for.
        seed: of everything drawn.
        sizes: how long the outputs are, and the long prompts.
    """

    def __init__(self, model: str, seed: int, sizes: Sizes) -> None:
        self._model, self._sizes = model, sizes
        self._rng = random.Random(seed)
        self._images = [self._image(index) for index in range(_NUM_IMAGES)]
        self._kinds: Sequence[tuple[str, Callable[[], Body]]] = [
            (CHAT, self._greedy),
            (CHAT, self._seeded),
            (CHAT, self._several),
            (CHAT, self._logprobs),
            (CHAT, self._first_in_the_prompt),
            (CHAT, self._behind_a_long_text),
            (CHAT, self._many_images),
            (CHAT, self._named),
            (CHAT, self._large),
            (CHAT, self._broken),
            (CHAT, self._text_alone),
            (COMPLETIONS, self._ids_alone),
            (RESPONSES, self._kept),
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
        """Requests with the same image share blocks of it."""
        return _asked(self._drawn(), self._text())

    def _behind_a_long_text(self) -> Body:
        characters = self._rng.randint(self._sizes.long_prompt_tokens // 2, self._sizes.long_prompt_tokens)
        return _asked(("lamps and dogs " * (characters // 15 + 1))[:characters], self._drawn())

    def _many_images(self) -> Body:
        return _asked(*(self._drawn() for _ in range(5)), self._text())

    def _named(self) -> Body:
        """An image under a name of the client's own."""
        number = self._rng.randrange(_NUM_IMAGES)
        return _asked(self._text(), _part(self._images[number]) | {"uuid": f"image {number}"})

    def _large(self) -> Body:
        return _asked(_part(picture(1600, 1200, self._rng.randrange(3), "JPEG")), self._text())

    def _broken(self) -> Body:
        """A file that ends in its middle: the request fails alone."""
        image = self._images[0]
        return _asked(self._text(), _part(image[: len(image) // 2]))

    def _text_alone(self) -> Body:
        return _asked(self._text())

    def _ids_alone(self) -> Body:
        return {"prompt": [self._rng.randint(5, 260) for _ in range(self._rng.randint(1, self._sizes.long_prompt_tokens))]}

    def _kept(self) -> Body:
        image = {"type": "input_image", "image_url": _url(self._rng.choice(self._images))}
        content = [{"type": "input_text", "text": self._text()}, image]
        return {"input": [{"role": "user", "content": content}], "store": True}

    # --- parts ------------------------------------------------------------------------------------------------------

    def _text(self) -> str:
        return " ".join(self._rng.choices(WORDS, k=self._rng.randint(3, 30)))

    def _drawn(self) -> Part:
        return _part(self._rng.choice(self._images))

    def _image(self, index: int) -> bytes:
        width, height = self._rng.randint(20, 200), self._rng.randint(20, 200)
        return picture(width, height, self._rng.getrandbits(31), _FORMS[index % len(_FORMS)])


def _asked(*parts: str | Part) -> Body:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"messages": [{"role": "user", "content": content}]}


def _part(image: bytes) -> Part:
    return {"type": "image_url", "image_url": {"url": _url(image)}}


def _url(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"
