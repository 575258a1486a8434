"""Turn constraint: constrains an assistant's turn to the form that the request requires.

Forced calls and strict tools become a constraint on the output, and every constraint starts after the reasoning. Pure: knows
tools and formats; knows nothing of requests.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from tetrad.frontend.chat.call_or_answer import call_or_answer
from tetrad.frontend.chat.conversation import Conversation, NamedTool, ToolChoice
from tetrad.frontend.llm.constraint_start import behind_reasoning
from tetrad.frontend.parsing.elements.call_schemas import named_schema, required_schema
from tetrad.frontend.parsing.elements.interface import Parser, Tool
from tetrad.frontend.parsing.elements.strict_calls import one_call
from tetrad.frontend.parsing.forced import NamedParser, RequiredParser
from tetrad.frontend.parsing.formats import ChatFormats
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.frontend.request.structured_outputs import MAX_NESTING, StructuredOutputsParams
from tetrad.services.errors import InvalidRequest

# Keywords of a schema that do not refer to undeclared arguments.
_PLAIN_OBJECT = frozenset(
    {"type", "properties", "required", "title", "description", "$schema", "$defs", "definitions", "examples"}
)


def constrained(params: SamplingParams, conversation: Conversation, formats: ChatFormats, prompt: str) -> SamplingParams:
    """Return `params` with the constraint of a turn.

    Args:
        params: the client's parameters, which may have a constraint already.
        conversation: the conversation with the tools that may be called.
        formats: the model's formats.
        prompt: the rendered conversation.

    Raises:
        InvalidRequest: two constraints at once, an unknown function, or a strict tool that the format cannot constrain.
    """
    answer = params.structured_outputs
    if answer is not None and conversation.tools and conversation.tool_choice == "auto" and formats.tools is not None:
        either = call_or_answer(answer, conversation.tools, formats.tools, parallel=conversation.parallel_tool_calls)
        if either is not None:
            return behind_reasoning(params, either, formats, prompt)
    outputs = _tool_constraint(conversation, formats)
    if outputs is not None and answer is not None:
        is_auto = conversation.tool_choice == "auto"
        what = "strict tools" if is_auto else f"tool_choice {_shown(conversation.tool_choice)}"
        other = "response_format or structured_outputs" if is_auto else "structured_outputs"
        text = f"{what} cannot be combined with {other}: an output has one form."
        raise InvalidRequest(text, field="tool_choice")
    outputs = outputs or answer
    return params if outputs is None else behind_reasoning(params, outputs, formats, prompt)


def forced_parser(conversation: Conversation) -> Parser | None:
    """Return the parser of an output that consists of calls only; None if calls are not forced."""
    match conversation.tool_choice:
        case "required":
            return RequiredParser()
        case NamedTool(name):
            return NamedParser(name)
    return None


def _tool_constraint(conversation: Conversation, formats: ChatFormats) -> StructuredOutputsParams | None:
    tools = conversation.tools
    match conversation.tool_choice:
        case "required":
            if not tools:
                raise InvalidRequest("When using `tool_choice`, `tools` must be set.", field="tools")
            closed = [_closed(tool) for tool in tools]
            return _calls(required_schema(closed, parallel=conversation.parallel_tool_calls))
        case NamedTool(name):
            return _calls(named_schema(_closed(_tool_named(name, tools))))
        case "auto" if any(tool.strict for tool in tools):
            return StructuredOutputsParams(structural_tag=_strict_tag(conversation, formats), request_field="tools")
    return None


def _calls(schema: dict[str, Any]) -> StructuredOutputsParams:
    """Return the constraint of forced calls with this schema, which is made of the tools' parameters."""
    try:
        return StructuredOutputsParams(json=schema, request_field="tools")
    except InvalidRequest as error:
        text = f"The parameters of the tools are nested too deeply: the schema of forced calls may have {MAX_NESTING} levels."
        raise InvalidRequest(text, field="tools") from error


def _tool_named(name: str, tools: Sequence[Tool]) -> Tool:
    found = next((tool for tool in tools if tool.name == name), None)
    if found is None:
        names = ", ".join(tool.name for tool in tools) or "none"
        text = f"The tool {name!r} specified in `tool_choice` does not match any of the specified `tools`: {names}."
        raise InvalidRequest(text, field="tool_choice")
    return found


def _closed(tool: Tool) -> Tool:
    """Return a tool that accepts only its declared arguments, if its schema does not say whether it accepts others.

    Otherwise models invent further arguments, although they are constrained to the schema. Schemas that consist of other
    schemas are not changed: their parts may declare arguments that the whole does not.
    """
    schema = tool.parameters
    if schema.keys() - _PLAIN_OBJECT:
        return tool
    properties, required = schema.get("properties"), schema.get("required", [])
    if (
        not isinstance(properties, dict)
        or not isinstance(required, list)
        or any(name not in [*properties] for name in required)
    ):
        return tool
    return dataclasses.replace(tool, parameters={**schema, "additionalProperties": False})


def _strict_tag(conversation: Conversation, formats: ChatFormats) -> str:
    tools = conversation.tools
    tag = None if formats.tools is None else formats.tools.structural_tag(tools)
    if tag is None:
        name = next(tool.name for tool in tools if tool.strict)
        how = "does not parse tool calls" if formats.tools is None else f"calls tools in the format {formats.tools.name!r}"
        text = (
            f"The tool {name!r} is strict, but this server {how}, which cannot be held to a schema while the model is free to"
            " call or not. Leave `strict` out, or set `tool_choice` to `required` or to the function."
        )
        raise InvalidRequest(text, field="tools")
    return json.dumps(tag if conversation.parallel_tool_calls else one_call(tag))


def _shown(choice: ToolChoice) -> str:
    return f"for the function {choice.name!r}" if isinstance(choice, NamedTool) else f"`{choice}`"
