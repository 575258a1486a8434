"""Documentation of the Responses API: schemas and examples of its answers.

Data only. A test (test_answers.py) validates real answers by these schemas, which allow no other fields.
"""

from tetrad.frontend.api.http.documentation.schemas import (
    EXAMPLE_MODEL,
    EXAMPLE_TEXT,
    Schema,
    body_schema,
    constant,
    either,
    field,
    obj,
    one_of_type,
    or_null,
)
from tetrad.frontend.api.http.documentation.schemas import struct_schema as struct
from tetrad.frontend.api.http.responses.bodies import ReasoningConfig, TextConfig, ToolBody, ToolChoiceBody
from tetrad.frontend.api.http.schemas.objects import TokenLogprob

_ANNOTATIONS = field("array", "Always empty: models here quote no sources.", items={})
_OUTPUT_TEXT = obj(
    "*",
    type=constant("output_text"),
    text=field("string", "What was said."),
    annotations=_ANNOTATIONS,
    logprobs=field("array", "Of the text's tokens, if `include` asks for them.", items=struct(TokenLogprob)),
)
_REASONING_TEXT = obj("*", type=constant("reasoning_text"), text=field("string", "What the model thought."))
CONTENT_PART = either(output_text=_OUTPUT_TEXT, reasoning_text=_REASONING_TEXT)
_ITEM_STATUS = field("string", "in_progress, completed, or incomplete where the item was cut off.")
OUTPUT_ITEM = either(
    message=obj(
        "*",
        type=constant("message"),
        id=field("string", "Names the item."),
        status=_ITEM_STATUS,
        role=constant("assistant"),
        content=field("array", "One part; none before anything is said.", items=_OUTPUT_TEXT),
    ),
    reasoning=obj(
        "type id status summary content",
        type=constant("reasoning"),
        id=field("string", "Names the item."),
        status=_ITEM_STATUS,
        summary=field("array", "Always empty: reasoning is sent as it is.", items={}),
        content=field("array", "One part; none before anything is thought.", items=_REASONING_TEXT),
        encrypted_content=field("string", "The same for clients that store nothing, if `include` asks for it."),
    ),
    function_call=obj(
        "type id status call_id name arguments",
        type=constant("function_call"),
        id=field("string", "Names the item."),
        status=_ITEM_STATUS,
        call_id=field("string", "Names the call; its function_call_output repeats it."),
        name=field("string", "The function."),
        namespace=field("string", "Of the function, if it has one."),
        arguments=field("string", "Its arguments as JSON text."),
    ),
    custom_tool_call=obj(
        "type id status call_id name input",
        type=constant("custom_tool_call"),
        id=field("string", "Names the item."),
        status=_ITEM_STATUS,
        call_id=field("string", "Names the call; its custom_tool_call_output repeats it."),
        name=field("string", "The custom tool."),
        namespace=field("string", "Of the tool, if it has one."),
        input=field("string", "Its input."),
    ),
)
_USAGE = obj(
    "*",
    input_tokens=field("integer", "Of the prompt."),
    input_tokens_details=obj(
        "*",
        cached_tokens=field("integer", "Taken from the prefix cache instead of computed."),
        cache_write_tokens=field("integer", "Always 0: what is written to the cache is not counted."),
    )
    | {"description": "Where the prompt's tokens came from."},
    output_tokens=field("integer", "Generated, reasoning included."),
    output_tokens_details=obj("*", reasoning_tokens=field("integer", "Spent on reasoning."))
    | {"description": "What output tokens were used for."},
    total_tokens=field("integer", "The sum of both."),
)
_TOOL_CHOICE: Schema = {
    "description": "As asked for.",
    "anyOf": [{"type": "string", "enum": ["none", "auto", "required"]}, body_schema(ToolChoiceBody)],
}

RESPONSE = obj(
    "*",
    id=field("string", "Names the response: to read it again, to cancel it, or to continue it (previous_response_id)."),
    object=constant("response"),
    created_at=field("integer", "When it was asked for, in Unix seconds."),
    status=one_of_type("How far it is.", "queued in_progress completed incomplete cancelled failed"),
    background=field("boolean", "Whether it was asked for in the background."),
    completed_at=field(["integer", "null"], "When it was complete, in Unix seconds; null if it is not."),
    error=or_null(
        obj(
            "*",
            code=field("string", "invalid_prompt, rate_limit_exceeded or server_error."),
            message=field("string", "For people."),
        )
        | {"description": "Why it failed; else null."}
    ),
    incomplete_details=or_null(
        obj("*", reason=constant("max_output_tokens")) | {"description": "Why it is incomplete; else null."}
    ),
    instructions=field(["string", "null"], "As asked for."),
    max_output_tokens=field(["integer", "null"], "As asked for."),
    max_tool_calls=field(["integer", "null"], "As asked for; without effect."),
    model=field("string", "The name that answered."),
    output=field("array", "Reasoning, messages and function calls, in the order they were written.", items=OUTPUT_ITEM),
    parallel_tool_calls=field("boolean", "Whether the model may make several calls at once."),
    previous_response_id=field(["string", "null"], "The response that this one continues."),
    prompt_cache_key=field(["string", "null"], "As sent."),
    reasoning=body_schema(ReasoningConfig) | {"description": "As asked for."},
    safety_identifier=field(["string", "null"], "As sent."),
    service_tier=constant("default"),
    store=field("boolean", "Whether it is kept: false also where the server keeps none."),
    temperature=field("number", "As it holds, the model's default included."),
    text=body_schema(TextConfig) | {"description": "The form of the answer, as asked for."},
    tool_choice=_TOOL_CHOICE,
    tools=field("array", "As asked for.", items=body_schema(ToolBody)),
    top_logprobs=field("integer", "As asked for."),
    top_p=field("number", "As it holds, the model's default included."),
    truncation=one_of_type("As asked for.", "auto disabled"),
    usage=or_null(_USAGE | {"description": "Tokens; null until it is over, and where nothing was computed."}),
    user=field(["string", "null"], "As sent."),
    metadata={"type": "object", "description": "As sent.", "additionalProperties": {"type": "string"}},
)
RESPONSE_EXAMPLE = {
    "id": "resp_9f2d",
    "object": "response",
    "created_at": 1767225600,
    "status": "completed",
    "background": False,
    "completed_at": 1767225601,
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "model": EXAMPLE_MODEL,
    "output": [
        {
            "type": "message",
            "id": "msg_9f2d_0",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": EXAMPLE_TEXT, "annotations": [], "logprobs": []}],
        }
    ],
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "usage": {
        "input_tokens": 36,
        "input_tokens_details": {"cached_tokens": 32, "cache_write_tokens": 0},
        "output_tokens": 8,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 44,
    },
    "user": None,
    "metadata": {},
}

DELETED_RESPONSE = obj(
    "*",
    id=field("string", "Of the response that is forgotten."),
    object=constant("response"),
    deleted=field("boolean", "Always true."),
)
DELETED_RESPONSE_EXAMPLE = {"id": "resp_9f2d", "object": "response", "deleted": True}

_PART = obj(
    "type",
    type=field("string", "input_text, output_text, refusal, reasoning_text or summary_text."),
    text=field("string", "The text."),
    refusal=field("string", "refusal: its text."),
    annotations=_ANNOTATIONS,
    logprobs=field("array", "output_text: of its tokens, if they were asked for.", items=struct(TokenLogprob)),
)
_LISTED_ITEM = obj(
    "id type status",
    id=field("string", "Names the item."),
    type=one_of_type(
        "Kind of item.", "message reasoning function_call function_call_output custom_tool_call custom_tool_call_output"
    ),
    status=field("string", "completed, unless it was sent or cut off otherwise."),
    role=field("string", "message: user, assistant, system or developer."),
    content=field("array", "message, reasoning: its parts.", items=_PART),
    summary=field("array", "reasoning: as sent.", items=_PART),
    encrypted_content=field("string", "reasoning: as sent."),
    call_id=field("string", "Calls and their outputs: names the call."),
    name=field("string", "function_call, custom_tool_call: the function or the tool."),
    namespace=field("string", "Calls: of the function or the tool, if it has one."),
    arguments=field("string", "function_call: its arguments as JSON text."),
    input=field("string", "custom_tool_call: its input."),
    output={
        "description": "Outputs of calls: what the function or the tool said.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": _PART}],
    },
)
INPUT_ITEMS = obj(
    "*",
    object=constant("list"),
    data=field("array", "The items of this page.", items=_LISTED_ITEM),
    first_id=field(["string", "null"], "Id of the page's first item."),
    last_id=field(["string", "null"], "Id of its last: `after` of the next page."),
    has_more=field("boolean", "Whether there is a next page."),
)
_ITEM_EXAMPLE = {
    "id": "item_9f2d_0",
    "type": "message",
    "status": "completed",
    "role": "user",
    "content": [{"type": "input_text", "text": "What is the capital of France?"}],
}
INPUT_ITEMS_EXAMPLE: Schema = {
    "object": "list",
    "data": [_ITEM_EXAMPLE],
    "first_id": "item_9f2d_0",
    "last_id": "item_9f2d_0",
    "has_more": False,
}

RESPONSE_TOKENS = obj(
    "*",
    object=constant("response.input_tokens"),
    input_tokens=field("integer", "Tokens of the prompt that the input becomes."),
)
RESPONSE_TOKENS_EXAMPLE = {"object": "response.input_tokens", "input_tokens": 36}
