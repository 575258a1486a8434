"""Catalogue: the requests of the mixed load, as a pure function of a seed.

Each kind of request stands here once, with the numbers drawn. Explicit seeds throughout: the answer to a request is then the
same whenever it is asked. Knows the fields of the HTTP API, nothing of connections.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.chaos.answers import Answer

Body = dict[str, Any]

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
_WORDS = ("river", "mill", "old", "miller", "counts", "grain", "hums", "of", "harvests", "winters", "lamps", "and", "dogs")
_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"enum": ["small", "medium", "large"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 6},
    },
    "required": ["name", "size", "tags"],
    "additionalProperties": False,
}
_TOOL = {"type": "function", "function": {"name": "store", "parameters": _SCHEMA}}


@dataclass(frozen=True)
class Request:
    """One HTTP request.

    Args:
        name: kind and number, for reports.
        path: of the endpoint.
        body: as JSON.
    """

    name: str
    path: str
    body: Body

    @property
    def streams(self) -> bool:
        """Whether the answer comes in pieces."""
        return bool(self.body.get("stream"))


@dataclass(frozen=True)
class Sizes:
    """How much the requests ask for.

    Args:
        min_tokens, max_tokens: bounds of the length of an output.
        long_prompt_tokens: length of the long prompts.
    """

    min_tokens: int
    max_tokens: int
    long_prompt_tokens: int


class Catalogue:
    """Makes requests.

    Args:
        model: name to ask for.
        seed: of everything drawn.
        sizes: how long the outputs are.
    """

    def __init__(self, model: str, seed: int, sizes: Sizes) -> None:
        self._model = model
        self._rng = random.Random(seed)
        self._sizes = sizes
        self._kinds: Sequence[tuple[str, Callable[[], Body]]] = [
            (COMPLETIONS, self._seeded),
            (CHAT, self._seeded_chat),
            (COMPLETIONS, self._greedy),
            (COMPLETIONS, self._several),
            (CHAT, self._several),
            (COMPLETIONS, self._penalised),
            (COMPLETIONS, self._logprobs),
            (CHAT, self._chat_logprobs),
            (COMPLETIONS, self._long_prompt),
            (COMPLETIONS, self._json),
            (CHAT, self._json_chat),
            (COMPLETIONS, self._regex),
            (COMPLETIONS, self._choice),
            (CHAT, self._tool),
            (COMPLETIONS, self._prompts),
        ]

    def make(self, number: int) -> list[Request]:
        """Return `number` requests, of each kind about as many; every other one is a stream."""
        return [self._request(index) for index in range(number)]

    def stopped(self, request: Request, answer: Answer) -> Request | None:
        """Return a request whose stop string ends it in the middle of an answer it had; None if there is no good one."""
        text = answer.choices[0].text
        middle = len(text) // 2
        stop = text[middle : middle + 6]
        if len(stop) < 6 or text.index(stop) != middle or "structured_outputs" in request.body:
            return None
        return replace(request, name=f"{request.name}-stopped", body=request.body | {"stop": [stop, "never said"]})

    def _request(self, index: int) -> Request:
        path, kind = self._kinds[index % len(self._kinds)]
        body: Body = {
            "model": self._model,
            "max_tokens": self._rng.randint(self._sizes.min_tokens, self._sizes.max_tokens),
            "seed": self._rng.getrandbits(31),
            "temperature": 0.8,
            "ignore_eos": True,
        }
        body |= {"prompt": self._text()} if path == COMPLETIONS else {"messages": self._messages()}
        body |= kind()
        name = f"{kind.__name__.strip('_')}-{index}"
        # An odd number of kinds: each kind streams half the time.
        if index % 2:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            name += "-stream"
        return Request(name, path, body)

    # --- kinds ------------------------------------------------------------------------------------------------------

    def _seeded(self) -> Body:
        return {"return_token_ids": True, "top_p": 0.95}

    def _seeded_chat(self) -> Body:
        return {"return_token_ids": True, "top_k": 40}

    def _greedy(self) -> Body:
        return {"temperature": 0}

    def _several(self) -> Body:
        return {"n": self._rng.randint(2, 4), "return_token_ids": True}

    def _penalised(self) -> Body:
        return {"presence_penalty": 0.5, "frequency_penalty": 0.4, "repetition_penalty": 1.1, "min_p": 0.02}

    def _logprobs(self) -> Body:
        return {"logprobs": 3, "return_token_ids": True}

    def _chat_logprobs(self) -> Body:
        return {"logprobs": True, "top_logprobs": 4}

    def _long_prompt(self) -> Body:
        length = self._rng.randint(self._sizes.long_prompt_tokens // 2, self._sizes.long_prompt_tokens)
        return {"prompt": [self._rng.randint(1000, 40_000) for _ in range(length)], "return_token_ids": True}

    def _json(self) -> Body:
        return {"structured_outputs": {"json": _SCHEMA}, "ignore_eos": False, "n": self._rng.choice((1, 2))}

    def _json_chat(self) -> Body:
        schema = {"name": "thing", "schema": _SCHEMA}
        return {"response_format": {"type": "json_schema", "json_schema": schema}, "ignore_eos": False}

    def _regex(self) -> Body:
        return {"structured_outputs": {"regex": r"([a-z]{2,5}-[0-9]{3}, ){5,9}end"}, "ignore_eos": False}

    def _choice(self) -> Body:
        return {"structured_outputs": {"choice": ["red apples", "green pears", "blue plums"]}, "ignore_eos": False}

    def _tool(self) -> Body:
        return {"tools": [_TOOL], "tool_choice": "required", "ignore_eos": False}

    def _prompts(self) -> Body:
        return {"prompt": [self._text(), self._text()], "logprobs": 1}

    # --- words ------------------------------------------------------------------------------------------------------

    def _text(self) -> str:
        return " ".join(self._rng.choices(_WORDS, k=self._rng.randint(3, 60)))

    def _messages(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self._text()}, {"role": "user", "content": self._text()}]
