"""Ollama conversations: converts bodies of /api/generate and /api/chat to a Conversation, the input of all chat APIs."""

from collections.abc import Iterator, Sequence
from typing import Any

from tetrad.frontend.api.http.ollama.bodies import ChatRequest, GenerateRequest, MessageBody
from tetrad.frontend.api.http.turns.media_contents import Content, content_of
from tetrad.frontend.chat.conversation import Conversation, thinking_kwargs
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.media.items import MediaSource
from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.services.errors import InvalidRequest


def chat_conversation(llm: AsyncLLM, body: ChatRequest) -> Conversation:
    """Return the conversation of a chat; InvalidRequest if it requests thinking from a model that does not mark reasoning."""
    messages = list(_messages(body.messages or ()))
    tools = [
        Tool(tool.function.name, tool.function.description or "", tool.function.parameters or {}, strict=False)
        for tool in body.tools or ()
    ]
    return Conversation(messages, tools=tools, chat_template_kwargs=_template_kwargs(llm, body.think))


def prompt_conversation(llm: AsyncLLM, body: GenerateRequest) -> Conversation:
    """Return the conversation of a prompt; errors as in `chat_conversation`."""
    system = [{"role": "system", "content": body.system}] if body.system else []
    user = {"role": "user", "content": _content(body.prompt or "", "images", body.images)}
    return Conversation([*system, user], chat_template_kwargs=_template_kwargs(llm, body.think))


def _messages(bodies: Sequence[MessageBody]) -> Iterator[dict[str, Any]]:
    """Yield the messages in OpenAI's form: calls have ids, and results refer to them."""
    waiting: list[dict[str, str]] = []
    num_calls = 0
    for place, body in enumerate(bodies):
        content = _content(body.content or "", f"messages[{place}].images", body.images)
        message: dict[str, Any] = {"role": body.role, "content": content}
        if body.thinking:
            message["reasoning"] = body.thinking
        if body.tool_calls:
            message["tool_calls"] = []
            for call in body.tool_calls:
                # Mistral's templates accept nine letters or digits only. The same id in every turn keeps the prefix cached.
                call_id = call.id or f"call{num_calls:05}"
                num_calls += 1
                waiting.append({"id": call_id, "name": call.function.name})
                function = {"name": call.function.name, "arguments": call.function.arguments}
                message["tool_calls"].append({"id": call_id, "type": "function", "function": function})
        if body.role == "tool":
            message |= _answered(body, waiting)
        yield message


def images_of(field: str, images: Sequence[str] | None) -> list[MediaSource]:
    """Return the images in a field of a body; InvalidRequest for an empty text."""
    for place, image in enumerate(images or ()):
        if not image:
            raise InvalidRequest(f"{field}[{place}] must be a file in base64, got an empty text.", field=f"{field}[{place}]")
    return [MediaSource(where=f"{field}[{place}]", base64=image) for place, image in enumerate(images or ())]


def _content(text: str, field: str, images: Sequence[str] | None) -> Content:
    found = images_of(field, images)
    return content_of([*found, *([text] if text or not found else [])])


def _answered(body: MessageBody, waiting: list[dict[str, str]]) -> dict[str, str]:
    """Return the function name and id of a result's call: the call that it names, or the first one without a result."""

    def fits(call: dict[str, str]) -> bool:
        return body.tool_call_id in (None, call["id"]) and body.tool_name in (None, call["name"])

    call = next(filter(fits, waiting), None)
    if call is not None:
        waiting.remove(call)
    name, call_id = body.tool_name or (call or {}).get("name"), body.tool_call_id or (call or {}).get("id")
    return {key: value for key, value in (("name", name), ("tool_call_id", call_id)) if value}


def _template_kwargs(llm: AsyncLLM, think: bool | str | None) -> dict[str, Any] | None:
    if think is None:
        return None
    if think and llm.chat_formats.reasoning is None:
        raise InvalidRequest("think is not supported: this model does not mark its reasoning.", field="think")
    return thinking_kwargs(None, enabled=bool(think)) | ({"reasoning_effort": think} if isinstance(think, str) else {})
