"""Answers in a form that may be compared: without times, ids and last digits of values."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

TOLERANCE = 2e-3
ANYTHING = object()
"""Part of an answer that its API does not have in this form."""
_NAMES = {"id", "call_id", "request_id", "created_at", "completed_at", "cached_tokens", "signature"}
_NAMES |= {"previous_response_id", "background"}


def without_names(value: Any) -> Any:
    """Return an answer without what differs whenever it is given, and without usage, which tells what was cached."""
    if isinstance(value, list):
        return [without_names(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("error"):
        return value["error"].get("message")
    return {name: without_names(each) for name, each in value.items() if name not in _NAMES and name != "usage"}


def merged_response(events: Sequence[Mapping[str, Any]]) -> Any:
    """Return what the events of a stream of /v1/responses make together: the last one has all of it, the deltas its texts."""
    last = events[-1]
    if last["type"] == "error":
        return {"error": last}
    texts: dict[tuple[int, int], str] = {}
    for event in events:
        if event["type"] in ("response.output_text.delta", "response.reasoning_text.delta"):
            place = event["output_index"], event["content_index"]
            texts[place] = texts.get(place, "") + event["delta"]
        elif event["type"] == "response.function_call_arguments.delta":
            texts[event["output_index"], 0] = texts.get((event["output_index"], 0), "") + event["delta"]
    for (item, part), text in texts.items():
        whole = last["response"]["output"][item]
        found = whole["arguments"] if "arguments" in whole else whole["content"][part]["text"]
        assert found == text, (found, text)
    return last["response"]


def merged_message(events: Sequence[Mapping[str, Any]]) -> Any:
    """Return the message that the events of a stream of /v1/messages make together."""
    message: dict[str, Any] = {}
    arguments = ""
    for event in events:
        match event["type"]:
            case "error":
                return event
            case "message_start":
                message = event["message"]
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                arguments = ""
            case "content_block_delta":
                block, delta = message["content"][event["index"]], event["delta"]
                for name in {"text", "thinking"} & delta.keys():
                    block[name] += delta[name]
                arguments += delta.get("partial_json", "")
            case "content_block_stop" if message["content"][-1]["type"] == "tool_use":
                message["content"][-1]["input"] = json.loads(arguments or "{}")
            case "message_delta":
                message |= event["delta"]
    return message


async def merged_stream(lines: AsyncIterator[str]) -> dict[str, Any]:
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


def compared_body(body: dict[str, Any], request_id: str) -> Any:
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
                "logprobs": ANYTHING if "sampled_logprobs" in choice else logprobs,
                "sampled_logprobs": choice.get("sampled_logprobs") or _sampled_logprobs(logprobs),
            }
        )
    usage = dict(body["usage"])
    usage.pop("total_tokens", None)
    details = usage.pop("completion_tokens_details", None) or {}
    usage.pop("prompt_tokens_details", None)
    usage.setdefault("reasoning_tokens", details.get("reasoning_tokens") or 0)
    return {"choices": choices, "usage": usage}


def _sampled_logprobs(logprobs: Mapping[str, Any] | None) -> list[float | None]:
    if not logprobs:
        return []
    return logprobs["token_logprobs"] if "token_logprobs" in logprobs else [each["logprob"] for each in logprobs["content"]]


def difference(found: Any, expected: Any, path: str = "") -> str:
    """Return where two answers differ, and how; empty if only in the last digits of values."""
    if found is ANYTHING:
        return ""
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
