"""Event docs: schemas of the events that the Responses and the Messages API stream. Data only; tested like answers.py."""

from tetrad.frontend.api.http.documentation import answers as docs
from tetrad.frontend.api.http.documentation.schemas import Schema, constant, either, field, obj, one_of_type, struct_schema
from tetrad.frontend.api.http.responses import TokenLogprob

_NUMBER = field("integer", "Counts the events of the response, from 0; `starting_after` when following again.")
_ITEM_ID = field("string", "Id of the item.")
_OUTPUT_INDEX = field("integer", "Place of the item in `output`.")
_CONTENT_INDEX = field("integer", "Place of the part in the item's content; always 0.")
_LOGPROBS = field("array", "Of the text's tokens, if `include` asks for them.", items=struct_schema(TokenLogprob))


def _event(types: str, **fields: Schema) -> Schema:
    return obj("*", type=one_of_type("What happened.", types), sequence_number=_NUMBER, **fields)


def _item_event(types: str, **fields: Schema) -> Schema:
    return _event(types, item_id=_ITEM_ID, output_index=_OUTPUT_INDEX, **fields)


RESPONSE_EVENT = either(
    state=_event(
        "response.created response.queued response.in_progress response.completed response.incomplete response.failed",
        response=docs.RESPONSE | {"description": "The response as it is now."},
    ),
    item=_event(
        "response.output_item.added response.output_item.done",
        output_index=_OUTPUT_INDEX,
        item=docs.OUTPUT_ITEM | {"description": "The item: at first empty, at last whole."},
    ),
    part=_item_event(
        "response.content_part.added response.content_part.done",
        content_index=_CONTENT_INDEX,
        part=docs.CONTENT_PART | {"description": "The part: at first empty, at last whole."},
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
)

_INDEX = field("integer", "Place of the block in `content`.")
_DELTA = either(
    text_delta=obj("*", type=constant("text_delta"), text=field("string", "What is new of the text.")),
    thinking_delta=obj("*", type=constant("thinking_delta"), thinking=field("string", "What is new of the thinking.")),
    signature_delta=obj("*", type=constant("signature_delta"), signature=field("string", "The signature of the thinking.")),
    input_json_delta=obj(
        "*", type=constant("input_json_delta"), partial_json=field("string", "What is new of the arguments' JSON text.")
    ),
)
_STOP = obj("*", stop_reason=docs.STOP_REASON, stop_sequence=docs.STOP_SEQUENCE) | {"description": "How it ended."}

MESSAGE_EVENT = either(
    message_start=obj(
        "*",
        type=constant("message_start"),
        message=docs.MESSAGE | {"description": "The message, without content; its usage counts the prompt."},
    ),
    ping=obj("*", type=constant("ping")),
    content_block_start=obj(
        "*",
        type=constant("content_block_start"),
        index=_INDEX,
        content_block=docs.BLOCK | {"description": "The block, empty."},
    ),
    content_block_delta=obj(
        "*",
        type=constant("content_block_delta"),
        index=_INDEX,
        delta=_DELTA | {"description": "What is new of the block."},
    ),
    content_block_stop=obj("*", type=constant("content_block_stop"), index=_INDEX),
    message_delta=obj(
        "*",
        type=constant("message_delta"),
        delta=_STOP,
        usage=docs.MESSAGE_USAGE | {"description": "Tokens of the whole request."},
    ),
    message_stop=obj("*", type=constant("message_stop")),
    error=docs.MESSAGE_ERROR,
)
