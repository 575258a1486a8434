"""Chat bodies: decodes a ChatRequest to the body of the same HTTP request, so that both APIs share rules and error texts.

Protobuf has no null: a field that protobuf cannot distinguish from an absent one is left out. This file only converts.
"""

from typing import Any

from pydantic import TypeAdapter, ValidationError

from tetrad.frontend.api.grpc.media_parts import part_of, source_of
from tetrad.frontend.api.http.chat.bodies import ChatCompletionRequest
from tetrad.frontend.api.http.schemas.errors import from_validation
from tetrad.frontend.media.items import MODALITIES
from tetrad.services.errors import InvalidRequest
from tetrad.v1 import inference_pb2

# The parser of HTTP bodies, with the same limits.
_JSON: TypeAdapter[Any] = TypeAdapter(Any)
_FUNCTION = "function"
_OWNER = "This server"
_MODES = {
    inference_pb2.TOOL_CHOICE_MODE_UNSPECIFIED: "auto",
    inference_pb2.TOOL_CHOICE_MODE_NONE: "none",
    inference_pb2.TOOL_CHOICE_MODE_AUTO: "auto",
    inference_pb2.TOOL_CHOICE_MODE_REQUIRED: "required",
}


def chat_body_of(request: inference_pb2.ChatRequest) -> ChatCompletionRequest:
    """Return a body with the conversation of a request, without sampling parameters and similar fields.

    Raises:
        InvalidRequest: a field that the HTTP API refuses, with its HTTP name; invalid JSON.
    """
    fields: dict[str, Any] = {
        "messages": [_message(f"messages[{place}]", message) for place, message in enumerate(request.messages)],
        "tools": [_tool(f"tools[{place}].parameters_json", tool) for place, tool in enumerate(request.tools)] or None,
        "tool_choice": _choice(request.tool_choice) if request.HasField("tool_choice") else None,
        "documents": json_of("documents_json", request.documents_json),
        "mm_processor_kwargs": json_of("mm_processor_kwargs_json", request.mm_processor_kwargs_json),
        "media_io_kwargs": json_of("media_io_kwargs_json", request.media_io_kwargs_json),
        "chat_template_kwargs": json_of("chat_template_kwargs_json", request.chat_template_kwargs_json),
        "reasoning_effort": request.reasoning_effort or None,
        "continue_final_message": request.continue_final_message,
        "add_special_tokens": request.add_special_tokens,
        "echo": request.echo,
    }
    optional = ("chat_template", "add_generation_prompt", "parallel_tool_calls", "include_reasoning")
    fields |= {name: getattr(request, name) for name in optional if request.HasField(name)}
    try:
        return ChatCompletionRequest.model_validate(fields)
    except ValidationError as error:
        raise from_validation(error) from None


def _message(where: str, message: inference_pb2.ChatMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.content_parts:
        if message.content:
            text = f"{where} has both content and content_parts; give one of them."
            raise InvalidRequest(text, field=f"{where}.content_parts")
        fields["content"] = [_part(f"{where}.content[{place}]", part) for place, part in enumerate(message.content_parts)]
    if message.tool_calls:
        fields["tool_calls"] = [_call(call) for call in message.tool_calls]
    optional = ("name", "tool_call_id", "reasoning")
    return fields | {name: value for name in optional if (value := getattr(message, name))}


def _part(where: str, part: inference_pb2.ContentPart) -> dict[str, Any]:
    kind = part.WhichOneof("part")
    if kind in MODALITIES:
        return part_of(source_of(where, getattr(part, kind), kind))
    return {} if kind is None else {"type": kind, kind: getattr(part, kind)}


def _call(call: inference_pb2.ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments_json or "{}"}
    # No function has an empty name: an empty one means an absent one.
    fields = {"type": _FUNCTION, _FUNCTION: function if call.name else {}}
    return fields | ({"id": call.id} if call.id else {})


def _tool(where: str, tool: inference_pb2.Tool) -> dict[str, Any]:
    function = {"description": tool.description, "parameters": json_of(where, tool.parameters_json), "strict": tool.strict}
    return {"type": _FUNCTION, _FUNCTION: function | ({"name": tool.name} if tool.name else {})}


def _choice(choice: inference_pb2.ToolChoice) -> str | dict[str, Any]:
    allowed = [_named(name) for name in choice.allowed_functions]
    if choice.WhichOneof("choice") == _FUNCTION:
        if allowed:
            text = "tool_choice has both function and allowed_functions; give one of them."
            raise InvalidRequest(text, field="tool_choice")
        return _named(choice.function)
    # An unknown number is refused by the check of the HTTP body, whose error lists the modes.
    mode = _MODES.get(choice.mode, str(choice.mode))
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}} if allowed else mode


def _named(name: str) -> dict[str, Any]:
    return {"type": _FUNCTION, _FUNCTION: {"name": name}}


def json_of(field: str, text: str) -> Any:
    """Return the value of a JSON text; None for an empty text."""
    if not text:
        return None
    try:
        return _JSON.validate_json(text)
    except ValidationError as error:
        cause = error.errors()[0]["ctx"]["error"]
        raise InvalidRequest(f"{field} is not valid JSON: {cause}.", field=field) from None
