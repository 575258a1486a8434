"""Conversations: combines a body of the Responses API and its earlier responses into one conversation. Pure."""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.api.http.responses.bodies import InputBody, InputItem
from tetrad.frontend.api.http.responses.items import OUTPUTS, Messages, is_continued
from tetrad.frontend.api.http.responses.tools import chosen_tools
from tetrad.frontend.chat.conversation import Conversation, forces_calls, thinking_kwargs
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams

_FORMAT = "text.format"


def conversation_of(body: InputBody, items: Sequence[InputItem], history: Sequence[dict[str, Any]] = ()) -> Conversation:
    """Return the conversation; InvalidRequest names the invalid field.

    Args:
        body: the body of the request.
        items: its input, with references resolved.
        history: the stored items of the earlier responses, oldest first.
    """
    tools, choice = chosen_tools(body)
    earlier = [InputItem.model_validate(item) for item in history]
    messages = Messages(answered={item.call_id for item in (*earlier, *items) if item.type in OUTPUTS})
    if body.instructions:
        messages.messages.append({"role": "system", "content": body.instructions})
    messages.add_all(earlier, "previous_response_id")
    messages.add_all(items, "input")
    continues = is_continued(items[-1])
    return Conversation(
        messages.finish(),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        chat_template=body.chat_template,
        chat_template_kwargs=_template_kwargs(body) or None,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        mm_processor_kwargs=body.mm_processor_kwargs,
        media_io_kwargs=body.media_io_kwargs,
    )


def json_format(body: InputBody) -> StructuredOutputsParams | None:
    """Return the constraint of a body's text format; None if it has none, or if calls are forced and there is no text."""
    form = None if body.text is None else body.text.format
    if form is None or form.type == "text" or forces_calls(chosen_tools(body)[1]):
        return None
    if form.type == "json_object":
        return StructuredOutputsParams(json_object=True, request_field=_FORMAT)
    closed = form.strict is True
    return StructuredOutputsParams(json=form.schema_, disable_additional_properties=closed, request_field=_FORMAT)


def _template_kwargs(body: InputBody) -> dict[str, Any]:
    effort = None if body.reasoning is None else body.reasoning.effort
    kwargs: dict[str, Any] = {}
    if effort is not None:
        kwargs = {"reasoning_effort": effort} | thinking_kwargs(body.chat_template_kwargs, enabled=effort != "none")
    return kwargs | (body.chat_template_kwargs or {})
