"""Items: converts items of the Responses API to messages for chat templates. Pure; knows no requests and no store.

A turn of the assistant consists of several items (reasoning, a message, calls), but is one message for a template.
"""

import json
import re
from collections.abc import Container, Iterable, Sequence
from typing import Any

from tetrad.frontend.api.http.responses.bodies import ContentPart, InputItem
from tetrad.frontend.api.http.responses.custom_tools import arguments_of_input
from tetrad.frontend.api.http.responses.encrypted_content import text_of_encrypted_content
from tetrad.frontend.api.http.responses.tools import joined_name
from tetrad.frontend.api.http.schemas.fields import required
from tetrad.frontend.api.http.turns.blocks import arguments_of
from tetrad.frontend.api.http.turns.media_contents import Content, content_of, text_and_media
from tetrad.frontend.media.items import MediaSource
from tetrad.frontend.media.parts import media_of_part
from tetrad.services.errors import InvalidRequest

Message = dict[str, Any]

_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_[0-9]+")
CALLS = ("function_call", "custom_tool_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output")
_ROLES = ("user", "assistant", "system", "developer")
_MEDIA_PARTS = ("input_image", "input_audio", "audio_url", "video_url")
_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


class Messages:
    """Collects the messages of a conversation's items.

    Args:
        answered: ids of the calls that have an output.

    Attributes:
        messages: the messages so far.
    """

    def __init__(self, answered: Container[str | None]) -> None:
        self._answered = answered
        self.messages: list[Message] = []
        # The assistant's present message, to which further items of its turn are added.
        self._turn: Message | None = None
        # Id of a call -> name of the function: outputs have the id only.
        self._calls: dict[str, str] = {}
        # Images, audio and videos of outputs that no message has yet.
        self._media: list[dict[str, Any]] = []

    def add_all(self, items: Iterable[InputItem], path: str) -> None:
        """Append items, which are at `path` in the body; InvalidRequest names the invalid item."""
        for place, item in enumerate(items):
            # A call that was cut off usually has no output, and its arguments are not valid JSON: it is left out.
            is_cut_off = item.type in CALLS and item.status == "incomplete"
            if not is_cut_off or item.call_id in self._answered:
                self.add(item, f"{path}.{place}")

    def add(self, item: InputItem, path: str) -> None:
        """Append one item; `path` is its name in errors."""
        match item_type(item):
            case "message":
                self._add_message(item, path)
            case "reasoning":
                thought = _thought(path, item)
                turn = self._assistant(new=self._has_spoken())
                turn["reasoning_content"] = "\n".join(filter(None, (turn.get("reasoning_content"), thought)))
            case "function_call":
                self._add_call(item, path, _as_json(required(path, "arguments", item.arguments)))
            case "custom_tool_call":
                self._add_call(item, path, arguments_of_input(required(path, "input", item.input)))
            case "function_call_output" | "custom_tool_call_output":
                self._add_output(item, path)
            case other:
                raise InvalidRequest(f"{path}: items of type {other!r:.64} are not supported.", field=f"{path}.type")

    def _add_message(self, item: InputItem, path: str) -> None:
        role = required(path, "role", item.role)
        if role not in _ROLES:
            text = f"{path}.role must be one of {', '.join(_ROLES)}, got {role!r}."
            raise InvalidRequest(text, field=f"{path}.role")
        if item.content is None:
            raise InvalidRequest(f"{path}.content: Field required", field=f"{path}.content")
        if role == "assistant":
            self._assistant(new=self._has_spoken())["content"] = _joined(f"{path}.content", item.content, separator="")
        else:
            self._append({"role": role, "content": _content(f"{path}.content", item.content)})

    def _add_call(self, item: InputItem, path: str, arguments: str) -> None:
        name, call_id = required(path, "name", item.name), required(path, "call_id", item.call_id)
        name = joined_name(item.namespace, name)
        function = {"name": name, "arguments": arguments}
        self._calls[call_id] = name
        turn = self._assistant(new=False)
        turn["tool_calls"] = [*turn.get("tool_calls", ()), {"id": call_id, "type": "function", "function": function}]

    def _add_output(self, item: InputItem, path: str) -> None:
        if item.output is None:
            raise InvalidRequest(f"{path}.output: Field required", field=f"{path}.output")
        if item.call_id is None and item.name is not None:
            # Codex adds such outputs for what the model has not asked for. Templates need the call of a tool's message.
            self._append({"role": "user", "content": _content(f"{path}.output", item.output)})
            return
        call_id = required(path, "call_id", item.call_id)
        if call_id not in self._calls:
            kind = "custom tool call" if item.type == "custom_tool_call_output" else "function call"
            text = f"{path}.call_id: No tool call found for {kind} output with call_id {call_id:.64}."
            raise InvalidRequest(text, field=f"{path}.call_id")
        text, media = text_and_media(_content(f"{path}.output", item.output))
        self._append({"role": "tool", "tool_call_id": call_id, "name": self._calls[call_id], "content": text})
        self._media += media

    def _append(self, message: Message) -> None:
        self._show_media(message["role"])
        self.messages.append(message)
        self._turn = None

    def _show_media(self, next_role: str) -> None:
        """Append the media of outputs as a message of the user: few templates read media of tools.

        All outputs of one turn stay together, so the media follow the last one.
        """
        if self._media and next_role != "tool":
            self.messages.append({"role": "user", "content": self._media})
            self._media = []

    def finish(self) -> list[Message]:
        """Return the messages of all items."""
        self._show_media("")
        return self.messages

    def _has_spoken(self) -> bool:
        return self._turn is not None and bool(self._turn["content"] or "tool_calls" in self._turn)

    def _assistant(self, *, new: bool) -> Message:
        """Return the message of the assistant's present turn; a new one if there is none or `new` is set."""
        if self._turn is None or new:
            self._show_media("assistant")
            self._turn = {"role": "assistant", "content": ""}
            self.messages.append(self._turn)
        return self._turn


def _thought(path: str, item: InputItem) -> str:
    text = None if item.content else text_of_encrypted_content(item.encrypted_content)
    return _joined(f"{path}.content", item.content or item.summary or ()) if text is None else text


def item_type(item: InputItem) -> str | None:
    """Return the type of an item; messages and references may omit it."""
    if item.type is None:
        return "message" if item.role is not None else "item_reference" if item.id is not None else None
    return item.type


def is_continued(last: InputItem) -> bool:
    """Return whether the last item is an incomplete message of the assistant, which the model continues."""
    return item_type(last) == "message" and last.role == "assistant" and last.status in ("in_progress", "incomplete")


def listed_items(items: Sequence[InputItem], response_id: str) -> list[dict[str, Any]]:
    """Return the items of a request in their stored form, each with an id; see `response_of_item`."""
    hexes = response_id.removeprefix("resp_")
    return [_listed(item, f"item_{hexes}_{place}") for place, item in enumerate(items)]


def response_of_item(item_id: str) -> str | None:
    """Return the id of the response that an item belongs to; None if the id has another form than the server's ids."""
    found = _ITEM_ID.fullmatch(item_id)
    return None if found is None else f"resp_{found[1]}"


def _listed(item: InputItem, item_id: str) -> dict[str, Any]:
    fields = {"id": item_id, "type": item_type(item), "status": "completed"} | item.model_dump(exclude_none=True)
    if item.role == "assistant":
        fields["content"] = [_as_output(part) for part in fields.get("content", ())]
    if fields["type"] == "reasoning":
        fields.setdefault("summary", [])
    if item.output is not None and [part.type for part in item.output] == ["input_text"]:
        fields["output"] = item.output[0].text
    return fields


def _as_output(part: dict[str, Any]) -> dict[str, Any]:
    return part | {"type": "output_text", "annotations": []} if part["type"] == "input_text" else part


def _as_json(arguments: str) -> str:
    """Return arguments that are JSON unchanged; of others, which models may write, what is complete: templates need JSON."""
    try:
        json.loads(arguments or "{}")
    except RecursionError:
        return arguments
    except ValueError:
        return json.dumps(arguments_of(arguments), ensure_ascii=False)
    return arguments


def _joined(path: str, parts: Sequence[ContentPart], separator: str = "\n") -> str:
    return separator.join(_text(f"{path}.{place}", part) for place, part in enumerate(parts))


def _content(path: str, parts: Sequence[ContentPart]) -> Content:
    """Return the text of parts, or a list of parts if there are images, audio or videos among them."""
    return content_of(_media(f"{path}.{place}", part) or _text(f"{path}.{place}", part) for place, part in enumerate(parts))


def _media(path: str, part: ContentPart) -> MediaSource | None:
    if part.type not in _MEDIA_PARTS:
        return None
    found = media_of_part(path, part.model_dump(exclude_none=True))
    return found if isinstance(found, MediaSource) else None


def _text(path: str, part: ContentPart) -> str:
    if part.type == "refusal":
        return required(path, "refusal", part.refusal)
    if part.type not in _TEXT_PARTS:
        text = f"{path}: parts of type {part.type!r:.64} are not supported here."
        raise InvalidRequest(text, field=f"{path}.type")
    return required(path, "text", part.text)
