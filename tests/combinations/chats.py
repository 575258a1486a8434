"""Draws conversations: turns of both sides, calls and their results, media, and constraints on the next turn."""

import base64
import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from tests.pictures import picture
from tests.sounds import sound
from tests.video_files import video

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Tom", "Kit"]}, "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
    "required": ["name"],
    "additionalProperties": False,
}
_CALL = r'<tool_call>\n?\{"name": "look", "arguments": \{"name": "(Tom|ü)"\}\}</tool_call>'
TURN = rf"(<think>[a-c]{{1,3}}</think>)?[a-c ]{{0,3}}({_CALL}){{0,2}}[a-c]?"
"""Regular expression of a turn with reasoning, an answer and calls."""
_NAMES = ("look", "find")
_TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f"],
        "tags": [{"begin": "<f>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</f>"}],
    },
}
_SIZES = [(60, 40, 1), (100, 50, 2), (40, 90, 3)]


@cache
def _media(modality: str, number: int) -> Mapping[str, Any]:
    """Return one of three parts of a modality."""
    kind, data = {
        "image": lambda: ("image/png", picture(*_SIZES[number])),
        "audio": lambda: ("audio/wav", sound(0.3 + 0.4 * number, seed=number)),
        "video": lambda: ("video/mp4", video(4 + 3 * number, size=(64, 64), seed=number)),
    }[modality]()
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": f"{modality}_url", f"{modality}_url": {"url": url}}


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


class Conversations:
    """The source of conversations.

    Args:
        rng: the randomness.
        text: draws a text.
        modalities: media that turns of the user may have.
    """

    def __init__(self, rng: random.Random, text: Callable[[], str], modalities: Sequence[str]) -> None:
        self._rng, self._text, self._modalities = rng, text, modalities

    def messages(self) -> list[dict[str, Any]]:
        """Return turns, the last one by the user."""
        rng = self._rng
        messages = [{"role": "user", "content": self._content()}]
        if rng.random() < 0.2:
            messages = [*messages, *rng.choice([self._answer, self._call])(), {"role": "user", "content": self._content()}]
        if rng.random() < 0.3:
            messages = [{"role": "system", "content": "abc " * 6}, *messages]
        return messages

    def fields(self, *, is_constrained: bool) -> dict[str, Any]:
        """Return tools and a choice among them, or a format of the answer; none where the answer has a constraint already."""
        rng = self._rng
        if rng.random() < 0.4:
            strict = rng.choice([{}, {}, {"strict": True}])
            tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA} | strict} for name in _NAMES]
            fields = {"tools": tools, "parallel_tool_calls": rng.random() < 0.5}
            some = {
                "type": "allowed_tools",
                "allowed_tools": {"mode": rng.choice(["auto", "required"]), "tools": [_named("find")]},
            }
            free = ["none", "auto"] if is_constrained else ["auto", "none", "required", _named("look"), some]
            return fields | {"tool_choice": rng.choice(free)}
        if not is_constrained and rng.random() < 0.4:
            schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
            return {"response_format": rng.choice([schema, {"type": "json_object"}, _TAG])}
        return {}

    def manner(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Return further fields of a body with these messages, which may get the beginning of the answer as the last one."""
        rng = self._rng
        fields: dict[str, Any] = {"include_reasoning": False} if rng.random() < 0.1 else {}
        if rng.random() < 0.1:
            messages.append({"role": "assistant", "content": self._text()})
            fields |= {"continue_final_message": True, "add_generation_prompt": False, "echo": rng.random() < 0.5}
        if rng.random() < 0.1:
            fields["cache_salt"] = rng.choice(["one", "two"])
        return fields

    def _answer(self) -> list[dict[str, Any]]:
        return [{"role": "assistant", "content": self._text(), "reasoning": self._text()}]

    def _call(self) -> list[dict[str, Any]]:
        function = {"name": "look", "arguments": json.dumps({"name": "Tom"})}
        call = {"id": "call_1", "type": "function", "function": function}
        return [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": self._text()},
        ]

    def _content(self) -> Any:
        rng, text = self._rng, self._text()
        if not self._modalities or rng.random() < 0.3:
            return text
        parts: list[Mapping[str, Any]] = [{"type": "text", "text": text}]
        for _ in range(rng.randint(1, 2)):
            parts.insert(rng.randint(0, 1), _media(rng.choice(self._modalities), rng.randrange(3)))
        return parts
