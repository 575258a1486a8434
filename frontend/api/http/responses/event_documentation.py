"""Documentation of the Responses API: schemas of its streamed events. Data only; tested like documentation.py."""

from tetrad.frontend.api.http.documentation.schemas import (
    Schema,
    either,
    field,
    obj,
    one_of_type,
)
from tetrad.frontend.api.http.documentation.schemas import struct_schema as struct
from tetrad.frontend.api.http.responses.documentation import CONTENT_PART, OUTPUT_ITEM, RESPONSE
from tetrad.frontend.api.http.schemas.objects import TokenLogprob

_NUMBER = field("integer", "Counts the events of the response, from 0; `starting_after` when following again.")
_ITEM_ID = field("string", "Id of the item.")
_OUTPUT_INDEX = field("integer", "Place of the item in `output`.")
_CONTENT_INDEX = field("integer", "Place of the part in the item's content; always 0.")
_LOGPROBS = field("array", "Of the text's tokens, if `include` asks for them.", items=struct(TokenLogprob))


def _event(types: str, **fields: Schema) -> Schema:
    return obj("*", type=one_of_type("What happened.", types), sequence_number=_NUMBER, **fields)


def _item_event(types: str, **fields: Schema) -> Schema:
    return _event(types, item_id=_ITEM_ID, output_index=_OUTPUT_INDEX, **fields)


RESPONSE_EVENT = either(
    state=_event(
        "response.created response.queued response.in_progress response.completed response.incomplete response.failed",
        response=RESPONSE | {"description": "The response as it is now."},
    ),
    item=_event(
        "response.output_item.added response.output_item.done",
        output_index=_OUTPUT_INDEX,
        item=OUTPUT_ITEM | {"description": "The item: at first empty, at last whole."},
    ),
    part=_item_event(
        "response.content_part.added response.content_part.done",
        content_index=_CONTENT_INDEX,
        part=CONTENT_PART | {"description": "The part: at first empty, at last whole."},
    ),
    text=_item_event(
        "response.output_text.delta",
        content_index=_CONTENT_INDEX,
        delta=field("string", "What is new of the text."),
        logprobs=_LOGPROBS,
    ),
    text_done=_item_event(
        "response.output_text.done",
        content_index=_CONTENT_INDEX,
        text=field("string", "The whole text."),
        logprobs=_LOGPROBS,
    ),
    reasoning=_item_event(
        "response.reasoning_text.delta",
        content_index=_CONTENT_INDEX,
        delta=field("string", "What is new of the reasoning."),
    ),
    reasoning_done=_item_event(
        "response.reasoning_text.done", content_index=_CONTENT_INDEX, text=field("string", "The whole reasoning.")
    ),
    arguments=_item_event(
        "response.function_call_arguments.delta", delta=field("string", "What is new of the arguments' JSON text.")
    ),
    arguments_done=_item_event(
        "response.function_call_arguments.done",
        name=field("string", "The function."),
        arguments=field("string", "The arguments as JSON text."),
    ),
    input=_item_event(
        "response.custom_tool_call_input.delta", delta=field("string", "What is new of the input of a custom tool.")
    ),
    input_done=_item_event("response.custom_tool_call_input.done", input=field("string", "The whole input.")),
)
