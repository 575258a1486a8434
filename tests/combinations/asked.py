"""The requests of a walk, and their answers in a form that may be compared: without times, ids and last digits of values."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
import pytest

from tetrad import BeamSearchParams, LoRARequest, SamplingParams
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.beam_search import beam_search
from tetrad.frontend.request.outputs import RequestOutput
from tetrad.frontend.request.pooling import PoolingParams
from tetrad.frontend.request.prompts import PromptType
from tetrad.frontend.request.sampling_params import RequestOutputKind
from tetrad.services.errors import TetradError

TOLERANCE = 2e-3


@dataclass(frozen=True)
class Client:
    """What takes requests: a frontend, and its HTTP app."""

    llm: AsyncLLM
    http: httpx.AsyncClient


class Asked(Protocol):
    """A request."""

    async def answer(self, client: Client, request_id: str, kind: RequestOutputKind | None = None) -> Any:
        """Return the answer, or the error. `kind`: how it is sent; the answer is the same."""


@dataclass(frozen=True)
class LibraryCall:
    """A call of AsyncLLM's add_request."""

    prompt: PromptType
    params: SamplingParams
    options: Mapping[str, Any]

    async def answer(self, client: Client, request_id: str, kind: RequestOutputKind | None = None) -> Any:
        params = self.params.clone()
        if kind is not None:
            params.output_kind = kind
        try:
            stream = await client.llm.add_request(request_id, self.prompt, params, **self.options)
            outputs = [output async for output in stream]
        except TetradError as error:
            return type(error).__name__, str(error).replace(request_id, "ID")
        return self.compared(self.merged(outputs, params.output_kind))

    @staticmethod
    def merged(outputs: list[RequestOutput], kind: RequestOutputKind) -> RequestOutput:
        """Return all outputs as one; the texts of cumulative ones only grow."""
        first, *others = outputs
        for other in others:
            if kind == RequestOutputKind.CUMULATIVE:
                known = {each.index: each for each in first.outputs}
                for each in other.outputs:
                    if each.index in known:
                        assert each.text.startswith(known[each.index].text), (known[each.index], each)
                        assert each.token_ids[: len(known[each.index].token_ids)] == known[each.index].token_ids
            first.add(other, aggregate=kind == RequestOutputKind.DELTA)
        return first

    @staticmethod
    def compared(output: RequestOutput) -> Any:
        """Return what an output has of its request."""
        choices = [
            {
                "index": each.index,
                "token_ids": list(each.token_ids),
                "text": each.text,
                "finish_reason": each.finish_reason,
                "stop_reason": each.stop_reason,
                "logprobs": each.logprobs and [_positions(place) for place in each.logprobs],
                "cumulative_logprob": each.cumulative_logprob,
            }
            for each in sorted(output.outputs, key=lambda each: each.index)
        ]
        prompt = {"prompt": output.prompt, "prompt_token_ids": output.prompt_token_ids}
        prompt["prompt_logprobs"] = output.prompt_logprobs and [_positions(place) for place in output.prompt_logprobs]
        return {"outputs": choices, "finished": output.finished, **prompt}


@dataclass(frozen=True)
class BeamCall:
    """A beam search."""

    prompt: PromptType
    params: BeamSearchParams
    adapter: LoRARequest | None
    priority: int

    async def answer(self, client: Client, request_id: str, kind: RequestOutputKind | None = None) -> Any:
        options: Any = {"lora_request": self.adapter, "priority": self.priority}
        try:
            output = await beam_search(client.llm, request_id, self.prompt, self.params, **options)
        except TetradError as error:
            return type(error).__name__, str(error).replace(request_id, "ID")
        return [
            {"tokens": each.tokens, "text": each.text, "score": each.score, "finish_reason": each.finish_reason}
            for each in output.sequences
        ]


@dataclass(frozen=True)
class PoolingCall:
    """An embedding."""

    prompt: PromptType
    params: PoolingParams
    adapter: LoRARequest | None
    priority: int

    async def answer(self, client: Client, request_id: str, kind: RequestOutputKind | None = None) -> Any:
        options: Any = {"lora_requests": [self.adapter], "priority": self.priority}
        try:
            output = await client.llm.encode(self.prompt, self.params, request_id, **options)
        except TetradError as error:
            return type(error).__name__, str(error).replace(request_id, "ID")
        return output.outputs.to_list()


@dataclass(frozen=True)
class BodyCall:
    """A body for an HTTP route."""

    path: str
    body: Mapping[str, Any]
    is_stream: bool

    async def answer(self, client: Client, request_id: str, kind: RequestOutputKind | None = None) -> Any:
        """Return the answer; a `kind` allows streams."""
        body = dict(self.body) | {"request_id": request_id}
        if kind is None or not self.is_stream or {"best_of", "prompt_logprobs"} & body.keys():
            answer = await client.http.post(self.path, json=body)
            return _compared_body(answer.json(), request_id)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with client.http.stream("POST", self.path, json=body) as answer:
            if answer.status_code != 200:
                return _compared_body(json.loads(await answer.aread()), request_id)
            return _compared_body(await _merged_stream(answer.aiter_lines()), request_id)


@dataclass(frozen=True)
class TurnCall:
    """A body for /v1/responses or /v1/messages, whose answers have parts of many kinds."""

    path: str
    body: Mapping[str, Any]

    async def answer(self, client: Client, request_id: str, kind: RequestOutputKind | None = None) -> Any:
        """Return the answer; with DELTA that of a stream, if its last event has all of it."""
        if kind != RequestOutputKind.DELTA or self.path != "/v1/responses":
            return _without_names((await client.http.post(self.path, json=self.body)).json())
        async with client.http.stream("POST", self.path, json=dict(self.body) | {"stream": True}) as answer:
            if answer.status_code != 200:
                return _without_names(json.loads(await answer.aread()))
            lines = [line async for line in answer.aiter_lines() if line.startswith("data: {")]
        return _without_names(json.loads(lines[-1].removeprefix("data: "))["response"])


_NAMES = {"id", "call_id", "request_id", "created_at", "completed_at", "cached_tokens", "signature"}


def _without_names(value: Any) -> Any:
    """Return an answer without what differs whenever it is given, and without usage, which tells what was cached."""
    if isinstance(value, list):
        return [_without_names(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("error"):
        return value["error"].get("message")
    return {name: _without_names(each) for name, each in value.items() if name not in _NAMES and name != "usage"}


async def _merged_stream(lines: AsyncIterator[str]) -> dict[str, Any]:
    merged: dict[str, Any] = {"choices": {}}
    async for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            return chunk
        if chunk.get("usage"):
            merged["usage"] = chunk["usage"]
        for name in ("prompt_token_ids", "prompt_logprobs"):
            if chunk.get(name):
                merged[name] = chunk[name]
        for choice in chunk["choices"]:
            _merge(merged["choices"].setdefault(choice["index"], {}), choice)
    merged["choices"] = [choice for _, choice in sorted(merged["choices"].items())]
    return merged


def _merge(known: dict[str, Any], new: dict[str, Any]) -> None:
    for name, value in new.items():
        if value is None or name in ("index", "role", "type", "id"):
            known[name] = value if known.get(name) is None else known[name]
        elif isinstance(value, dict):
            known[name] = known.get(name) or {}
            _merge(known[name], value)
        elif name == "tool_calls":
            calls = known.setdefault(name, {})
            for call in value:
                _merge(calls.setdefault(call["index"], {}), call)
        elif isinstance(value, str) and name not in ("finish_reason", "stop_reason"):
            known[name] = (known.get(name) or "") + value
        elif isinstance(value, list) and name != "prompt_token_ids":
            known[name] = (known.get(name) or []) + value
        else:
            known[name] = value


def _compared_body(body: dict[str, Any], request_id: str) -> Any:
    if "error" in body:
        # A stream that has begun has the status 200.
        return body["error"]["message"].replace(request_id, "ID")
    choices = []
    for choice in body["choices"]:
        message = choice.pop("message", None) or choice.pop("delta", None) or {}
        calls = message.get("tool_calls") or []
        calls = [calls[place] for place in sorted(calls)] if isinstance(calls, dict) else calls
        logprobs = choice.get("logprobs") or None
        if logprobs and not any(logprobs.values()):
            logprobs = None
        choices.append(
            {
                "index": choice["index"],
                "text": choice.get("text") or None,
                "content": message.get("content") or None,
                "reasoning": message.get("reasoning") or message.get("reasoning_content") or None,
                "calls": [(call["function"]["name"], call["function"].get("arguments") or "") for call in calls],
                "token_ids": choice.get("token_ids") or None,
                "finish_reason": choice["finish_reason"],
                "stop_reason": choice.get("stop_reason"),
                "logprobs": logprobs,
            }
        )
    usage = dict(body["usage"])
    details = usage.pop("completion_tokens_details", None) or {}
    usage.pop("prompt_tokens_details", None)
    usage["reasoning_tokens"] = details.get("reasoning_tokens") or 0
    return {"choices": choices, "usage": usage}


def _positions(place: Any) -> Any:
    return place and {token_id: (each.logprob, each.decoded_token) for token_id, each in place.items()}


def difference(found: Any, expected: Any, path: str = "") -> str:
    """Return where two answers differ, and how; empty if only in the last digits of values."""
    if isinstance(found, float) and isinstance(expected, float):
        return "" if found == pytest.approx(expected, abs=TOLERANCE, rel=TOLERANCE) else f"{path}: {found} != {expected}"
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        return next(filter(None, (difference(found[key], expected[key], f"{path}.{key}") for key in expected)), "")
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        return next(filter(None, (difference(*pair, f"{path}[{place}]") for place, pair in pairs)), "")
    return "" if found == expected else f"{path}: {found!r} != {expected!r}"


def started(found: Any, expected: Any) -> tuple[Any, Any]:
    """Return the comparable parts of the answer to an aborted request and of the whole answer: the tokens that both have."""
    if not isinstance(found, dict) or not isinstance(expected, dict) or "outputs" not in found:
        return None, None  # an error, or an answer without ids
    known = {each["index"]: each["token_ids"] for each in expected["outputs"]}
    tokens = {each["index"]: each["token_ids"] for each in found["outputs"]}
    return tokens, {index: known[index][: len(ids)] for index, ids in tokens.items()}
