"""Null in a body, which clients in typed languages send for unset fields."""

import json

import pytest

from tetrad.frontend.api.http.chat.bodies import ChatCompletionRequest, ToolFunction
from tetrad.frontend.api.http.chat.conversations import conversation_of
from tetrad.frontend.api.http.completions.bodies import CompletionRequest
from tetrad.frontend.api.http.messages import bodies as messages
from tetrad.frontend.api.http.responses import bodies as responses
from tetrad.frontend.api.http.schemas.generation_fields import JsonSchemaFormat, RepetitionDetectionBody, StreamOptions
from tetrad.frontend.api.http.schemas.sampling_fields import StructuredOutputsBody
from tetrad.frontend.api.http.tokens.bodies import TokenizeRequest

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
BODIES = [
    (CompletionRequest, {"prompt": "hi"}),
    (ChatCompletionRequest, CHAT),
    (TokenizeRequest, {"prompt": "hi"}),
    (responses.ResponsesRequest, {"input": "hi"}),
    (responses.ToolChoiceBody, {"type": "function"}),
    (messages.MessagesRequest, CHAT | {"max_tokens": 1}),
    (messages.ToolBody, {"name": "f", "input_schema": {}}),
    (messages.ToolChoiceBody, {"type": "auto"}),
    (ToolFunction, {"name": "f"}),
    (StreamOptions, {}),
    (JsonSchemaFormat, {}),
    (StructuredOutputsBody, {}),
    (RepetitionDetectionBody, {}),
]


@pytest.mark.parametrize(("model", "least"), BODIES, ids=[f"{model.__module__}.{model.__name__}" for model, _ in BODIES])
def test_null_means_unset_in_every_field(model, least):
    names = {name: field.alias or name for name, field in model.model_fields.items()}
    nulls = {alias: None for name, alias in names.items() if alias not in least and not model.model_fields[name].is_required()}
    assert nulls, "a body without optional fields tests nothing"

    body = model.model_validate_json(json.dumps(least | nulls))

    # Null may also stand beside the default, as another word for the same: `stream: null`.
    unset = model.model_validate_json(json.dumps(least)).model_dump()
    assert {name: value for name, value in body.model_dump().items() if value is not None and value != unset[name]} == {}


@pytest.mark.parametrize("field", [{}, {"add_generation_prompt": None}])
def test_a_continued_message_needs_no_word_on_the_generation_prompt(field):
    body = {"messages": [{"role": "assistant", "content": "I"}], "continue_final_message": True} | field

    conversation = conversation_of(ChatCompletionRequest.model_validate_json(json.dumps(body)))

    assert not conversation.add_generation_prompt


@pytest.mark.parametrize("fields", [{"top_logprobs": 0}, {"top_logprobs": 0, "logprobs": False}, {"reasoning_effort": "max"}])
def test_what_asks_for_nothing_is_no_contradiction(fields):
    ChatCompletionRequest.model_validate_json(json.dumps(CHAT | fields))


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "top_logprobs", "n", "seed", "priority"])
def test_whole_numbers_may_be_written_with_a_point(field):
    """JSON has one kind of number, and JavaScript's clients one type for it."""
    body = ChatCompletionRequest.model_validate_json(json.dumps(CHAT | {"logprobs": True, field: 2.0}))

    assert getattr(body, field) == 2
