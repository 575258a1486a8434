"""Catalogue: the requests of the mixed load, as a pure function of a seed.

Each kind of request stands here once, with random parameters. All requests have seeds: so the answer to a request is the same
at any time. Knows the fields of the HTTP API, nothing of connections.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.chaos.answers import Answer

Body = dict[str, Any]

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
EMBEDDINGS = "/v1/embeddings"

FAIL_TOKEN_ID = 42_000
"""A prompt with this token fails alone on the simulated device; see `sim_fail_token_id` of the worker."""

_EOS_TOKEN_ID = 2
_NUM_LARGE_VALUES = 1800
_MIN_PREDICTION = 20
"""Characters."""
# Longer than any request may take, and shorter than the steps of the clocks.
_TIME_LIMIT_S = 600
WORDS = ("river", "mill", "old", "miller", "counts", "grain", "hums", "of", "harvests", "winters", "lamps", "and", "dogs")
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
        body: as JSON, or the fields of a form.
        headers: besides the usual ones.
        fails: the answer is an error.
        file: the file of a form; None: the body is JSON.
    """

    name: str
    path: str
    body: Body
    headers: Sequence[tuple[str, str]] = ()
    fails: bool = False
    file: bytes | None = field(default=None, repr=False)

    @property
    def streams(self) -> bool:
        """Whether the answer comes in pieces."""
        return bool(self.body.get("stream"))

    def content(self) -> dict[str, Any]:
        """Return the arguments of an HTTP client."""
        if self.file is None:
            return {"json": self.body}
        fields = {name: value if isinstance(value, str) else json.dumps(value) for name, value in self.body.items()}
        return {"data": fields, "files": {"file": ("recording", self.file)}}


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
        embeds: the model makes embeddings, too, and some requests are for these.
    """

    def __init__(self, model: str, seed: int, sizes: Sizes, *, embeds: bool = False) -> None:
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
            (COMPLETIONS, self._large_schema),
            (CHAT, self._large_choice),
            (COMPLETIONS, self._biased),
            (CHAT, self._biased),
            (COMPLETIONS, self._allowed),
            (COMPLETIONS, self._failing),
            (COMPLETIONS, self._wide_logprobs),
            (COMPLETIONS, self._all_logprobs),
            (COMPLETIONS, self._prompt_logprobs),
            (COMPLETIONS, self._limited),
            (RESPONSES, self._kept),
            (COMPLETIONS, self._many),
            *([(EMBEDDINGS, self._embedding), (EMBEDDINGS, self._embeddings)] if embeds else []),
        ]
        assert len(self._kinds) % 2, "each kind streams half the time"

    def make(self, number: int) -> list[Request]:
        """Return `number` requests, of each kind about as many; every other one is a stream."""
        return [self._request(index) for index in range(number)]

    def stopped(self, request: Request, answer: Answer) -> Request | None:
        """Return a request whose stop string ends it in the middle of an answer it had; None if there is no good one."""
        text = answer.choices[0].text if answer.choices and request.path != RESPONSES else ""
        middle = len(text) // 2
        stop = text[middle : middle + 6]
        if len(stop) < 6 or text.index(stop) != middle or "structured_outputs" in request.body:
            return None
        return replace(request, name=f"{request.name}-stopped", body=request.body | {"stop": [stop, "never said"]})

    def predicted(self, request: Request, answer: Answer) -> Request | None:
        """Return a chat with its answer, changed in the middle, as prediction; None if it has not one text."""
        text = answer.choices[0].text if len(answer.choices) == 1 and request.path == CHAT else ""
        if len(text) < _MIN_PREDICTION:
            return None
        middle = len(text) // 2
        prediction = {"type": "content", "content": f"{text[:middle]} {self._rng.choice(WORDS)} {text[middle + 1 :]}"}
        return replace(request, name=f"{request.name}-predicted", body=request.body | {"prediction": prediction})

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
        if path == RESPONSES:
            return Request(name, path, _response_body(body))
        if path == EMBEDDINGS:
            return Request(name, path, {key: body[key] for key in ("model", "input")})
        # An odd number of kinds: each kind streams half the time, if it can.
        if index % 2 and "prompt_logprobs" not in body:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            name += "-stream"
        headers = (("X-Request-Timeout", str(_TIME_LIMIT_S)),) if kind == self._limited else ()
        return Request(name, path, body, headers, fails=kind == self._failing)

    # --- kinds ------------------------------------------------------------------------------------------------------

    def _embedding(self) -> Body:
        return {"input": self._long_prompt()["prompt"]}

    def _embeddings(self) -> Body:
        return {"input": [self._text() for _ in range(self._rng.randint(2, 40))]}

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

    def _large_schema(self) -> Body:
        """A schema of more than 40 KB."""
        schema = {
            "type": "object",
            "properties": {"city": {"enum": self._values()}},
            "required": ["city"],
            "additionalProperties": False,
        }
        return {"structured_outputs": {"json": schema}, "ignore_eos": False}

    def _large_choice(self) -> Body:
        return {"structured_outputs": {"choice": self._values()}, "ignore_eos": False}

    def _biased(self) -> Body:
        return {"logit_bias": {str(token): self._rng.randint(-5, 5) for token in self._ids(3000)}, "n": 2}

    def _allowed(self) -> Body:
        return {"allowed_token_ids": self._ids(8000), "return_token_ids": True}

    def _failing(self) -> Body:
        """A request whose row fails alone: on the CPU nothing is left to sample, the simulated device fails the prompt."""
        prompt = [*self._ids(self._rng.randint(1, 40)), FAIL_TOKEN_ID]
        return {"prompt": prompt, "allowed_token_ids": [_EOS_TOKEN_ID], "min_tokens": 4, "max_tokens": 8, "logprobs": 1}

    def _wide_logprobs(self) -> Body:
        return {"logprobs": self._rng.choice((0, 1, 20, 300)), "max_tokens": self._rng.randint(2, 20)}

    def _all_logprobs(self) -> Body:
        """The whole vocabulary."""
        return {"logprobs": -1, "max_tokens": 1}

    def _prompt_logprobs(self) -> Body:
        return {"prompt_logprobs": self._rng.choice((0, 3, 20)), "logprobs": self._rng.choice((None, 2))}

    def _limited(self) -> Body:
        """A request with a time limit, which travels to every service."""
        return {"return_token_ids": True}

    def _kept(self) -> Body:
        return {"store": True}

    def _many(self) -> Body:
        return {"n": 16, "logit_bias": {str(token): 1 for token in self._ids(300)}, "max_tokens": self._rng.randint(2, 12)}

    # --- words ------------------------------------------------------------------------------------------------------

    def _text(self) -> str:
        return " ".join(self._rng.choices(WORDS, k=self._rng.randint(3, 60)))

    def _ids(self, number: int) -> list[int]:
        return self._rng.sample(range(1000, 40_000), number)

    def _values(self) -> list[str]:
        """Different texts, 40 KB together."""
        return [f"{self._rng.choice(WORDS)} {self._rng.getrandbits(64):016x}" for _ in range(_NUM_LARGE_VALUES)]

    def _messages(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self._text()}, {"role": "user", "content": self._text()}]


def _response_body(body: Body) -> Body:
    """Return the body of a chat in the form of /v1/responses."""
    messages = body["prompt"] if "prompt" in body else body["messages"]
    return {
        "model": body["model"],
        "input": messages,
        "temperature": body["temperature"],
        "seed": body["seed"],
        "max_output_tokens": max(body["max_tokens"], 16),
        "store": True,
    }
