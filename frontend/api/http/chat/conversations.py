"""Chat conversations: converts the body of a chat completion to a Conversation, the common input of all chat APIs."""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.api.http.chat.bodies import AllowedToolsChoice, ChatCompletionRequest, NamedToolChoice, ToolBody
from tetrad.frontend.api.http.schemas.generation_fields import sampling_params_of
from tetrad.frontend.chat.conversation import Conversation, NamedTool, ToolChoice, forces_calls, thinking_kwargs
from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest


def conversation_of(body: ChatCompletionRequest) -> Conversation:
    """Return the conversation of a body; InvalidRequest if the tool choice names missing tools."""
    tools, choice = _tools_and_choice(body)
    return Conversation(
        [message.model_dump(exclude_unset=True) for message in body.messages],
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        documents=body.documents,
        chat_template=body.chat_template,
        chat_template_kwargs=_template_kwargs(body),
        add_generation_prompt=wants_generation_prompt(body.add_generation_prompt, body.continue_final_message),
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens,
        mm_processor_kwargs=body.mm_processor_kwargs,
        media_io_kwargs=body.media_io_kwargs,
    )


def chat_params(body: ChatCompletionRequest, defaults: dict[str, Any], conversation: Conversation) -> SamplingParams:
    """Return the sampling parameters of a body with this conversation; see sampling_params_of."""
    return sampling_params_of(
        body,
        defaults,
        max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        logprobs=body.top_logprobs or 0 if body.logprobs else None,
        with_format=not forces_calls(conversation.tool_choice),
    )


def wants_generation_prompt(add_generation_prompt: bool | None, continue_final_message: bool | None) -> bool:
    """Return whether the prompt ends with the start of a new turn. None: yes, unless the last message is continued."""
    return not continue_final_message if add_generation_prompt is None else add_generation_prompt


def echoed_text(body: ChatCompletionRequest) -> str:
    """Return the echoed start of the answer: the text of the last message, with `echo` and if it is the assistant's."""
    last = body.messages[-1] if body.messages else None
    if not body.echo or last is None or last.role != "assistant":
        return ""
    if isinstance(last.content, list):
        return "\n".join(str(part.get("text") or "") for part in last.content)
    return last.content or ""


def _tools_and_choice(body: ChatCompletionRequest) -> tuple[Sequence[Tool], ToolChoice]:
    tools = [tool_of(tool) for tool in body.tools or ()]
    match body.tool_choice:
        case None:
            return tools, "auto"
        case NamedToolChoice():
            return tools, NamedTool(body.tool_choice.function.name)
        case AllowedToolsChoice(allowed_tools=allowed):
            return _only(tools, [each.function.name for each in allowed.tools]), allowed.mode
        case choice:
            return tools, choice


def tool_of(tool: ToolBody) -> Tool:
    """Return a tool in the common form of all APIs."""
    function = tool.function
    return Tool(function.name, function.description or "", function.parameters or {}, strict=function.strict is True)


def _only(tools: Sequence[Tool], names: Sequence[str]) -> list[Tool]:
    unknown = next((name for name in names if name not in {tool.name for tool in tools}), None)
    if unknown is not None:
        text = f"The tool {unknown!r} in `tool_choice.allowed_tools` does not match any of the specified `tools`."
        raise InvalidRequest(text, field="tool_choice")
    return [tool for tool in tools if tool.name in names]


def _template_kwargs(body: ChatCompletionRequest) -> dict[str, Any] | None:
    if body.reasoning_effort is None:
        return body.chat_template_kwargs
    kwargs: dict[str, Any] = {"reasoning_effort": body.reasoning_effort}
    kwargs |= thinking_kwargs(body.chat_template_kwargs, enabled=body.reasoning_effort != "none")
    return kwargs | (body.chat_template_kwargs or {})
