"""Documentation of the Messages API: schemas and examples of its answers, and schemas of the events that it streams.

Data only. A test (test_answers.py) validates real answers by these schemas, which allow no other fields.
"""

from tetrad.frontend.api.http.documentation.schemas import (
    EXAMPLE_MODEL,
    EXAMPLE_TEXT,
    constant,
    either,
    field,
    free_object,
    obj,
)

MESSAGE_USAGE = obj(
    "*",
    input_tokens=field("integer", "Of the prompt, those from the prefix cache left out."),
    cache_creation_input_tokens=field("integer", "Always 0: what is written to the cache is not counted."),
    cache_read_input_tokens=field("integer", "Of the prompt, those from the prefix cache."),
    output_tokens=field("integer", "Generated, thinking included."),
    output_tokens_details=obj("*", thinking_tokens=field("integer", "Spent on thinking."))
    | {"description": "What output tokens were used for."},
)
BLOCK = either(
    text=obj("*", type=constant("text"), text=field("string", "What was said.")),
    thinking=obj(
        "*",
        type=constant("thinking"),
        thinking=field("string", "What the model thought."),
        signature=field("string", "A hash of it. May be sent back; is not checked."),
    ),
    tool_use=obj(
        "*",
        type=constant("tool_use"),
        id=field("string", "Names the call; its tool_result repeats it."),
        name=field("string", "The function."),
        input=free_object("Its arguments; of a call that was cut off, those that are complete."),
    ),
)
STOP_REASON = field(
    ["string", "null"],
    "end_turn, max_tokens, stop_sequence, tool_use or model_context_window_exceeded; null while it goes on.",
)
STOP_SEQUENCE = field(["string", "null"], "The stop sequence that ended it, if one did.")
MESSAGE = obj(
    "*",
    id=field("string", "Names the message."),
    type=constant("message"),
    role=constant("assistant"),
    model=field("string", "The name that answered."),
    content=field("array", "What was written, in its order.", items=BLOCK),
    stop_reason=STOP_REASON,
    stop_sequence=STOP_SEQUENCE,
    usage=MESSAGE_USAGE | {"description": "Tokens of the request."},
)
MESSAGE_EXAMPLE = {
    "id": "msg_9f2d",
    "type": "message",
    "role": "assistant",
    "model": EXAMPLE_MODEL,
    "content": [{"type": "text", "text": EXAMPLE_TEXT}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 32,
        "output_tokens": 8,
        "output_tokens_details": {"thinking_tokens": 0},
    },
}

MESSAGE_TOKENS = obj("*", input_tokens=field("integer", "Tokens of the prompt that the messages become."))
MESSAGE_TOKENS_EXAMPLE = {"input_tokens": 36}
MESSAGE_ERROR = obj(
    "*",
    type=constant("error"),
    error=obj(
        "*",
        type=field("string", "invalid_request_error, authentication_error, not_found_error, overloaded_error, api_error, ..."),
        message=field("string", "For people: names the field, the value and the limit."),
    )
    | {"description": "What is wrong."},
    request_id=field("string", "The X-Request-Id of the request."),
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
_STOP = obj("*", stop_reason=STOP_REASON, stop_sequence=STOP_SEQUENCE) | {"description": "How it ended."}

MESSAGE_EVENT = either(
    message_start=obj(
        "*",
        type=constant("message_start"),
        message=MESSAGE | {"description": "The message, without content; its usage counts the prompt."},
    ),
    ping=obj("*", type=constant("ping")),
    content_block_start=obj(
        "*",
        type=constant("content_block_start"),
        index=_INDEX,
        content_block=BLOCK | {"description": "The block, empty."},
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
        usage=MESSAGE_USAGE | {"description": "Tokens of the whole request."},
    ),
    message_stop=obj("*", type=constant("message_stop")),
    error=MESSAGE_ERROR,
)
