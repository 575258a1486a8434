"""Requests as token ids: rendering and then generating sends the engine core the same message as the chat or completion."""

import json

import pytest

from tests.frontend.conftest import make_settings, running_frontend
from tests.frontend.fakes import FakeEngine, running_engine
from tests.frontend.turns import FORMATS, WEATHER
from tetrad.services.rpc.carrier import GRPC
from tetrad.services.rpc.columns import pack_f32, pack_u32
from tetrad.v1 import types_pb2

HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]
SAMPLING = {
    "n": 2,
    "max_tokens": 5,
    "temperature": 0.7,
    "top_k": 5,
    "seed": 7,
    "stop": ["zz"],
    "logit_bias": {"104": -1.5},
    "bad_words": ["x"],
    "priority": 3,
    "cache_salt": "salt",
}


@pytest.fixture
async def frontend(serve_frontend):
    async with serve_frontend(**FORMATS) as running:
        yield running


@pytest.fixture
def engine(engine):
    """An engine core of few steps: most tests compare requests, whatever their answers."""
    engine.tokens_per_step = 64
    return engine


async def sent(http, engine, path, body):
    """Return the requests that the engine core gets for a body, without what names them or measures time."""
    before = len(engine.requests)
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    requests = engine.requests[before:]
    assert requests
    for each in requests:
        for name in ("request_id", "external_req_id", "handle", "arrival_time_unix_nanos", "trace_headers", "call_number"):
            each.ClearField(name)
    return requests


async def rendered(http, path, body):
    answer = await http.post(f"{path}/render", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    "options",
    [
        {},
        SAMPLING,
        {"seed": 1, "tools": TOOLS, "tool_choice": "required"},
        {"seed": 1, "tools": TOOLS, "response_format": {"type": "json_object"}},
        {"seed": 1, "response_format": {"type": "json_object"}},
        {"seed": 1, "structured_outputs": {"regex": "a+"}, "thinking_token_budget": 3},
        {"seed": 1, "thinking_token_budget": 3, "chat_template": "open"},
        {"seed": 1, "truncate_prompt_tokens": 4, "repetition_detection": {"max_pattern_size": 3, "min_count": 2}},
        {"seed": 1, "max_tokens": 4, "logprobs": True, "top_logprobs": 2},
    ],
)
async def test_a_rendered_chat_is_the_same_request_to_the_engine_core(http, engine, options):
    body = {"messages": HI, "seed": 5, **options}

    expected = await sent(http, engine, "/v1/chat/completions", body)
    found = await sent(http, engine, "/inference/v1/generate", await rendered(http, "/v1/chat/completions", body))

    assert found == expected


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7, "top_k": 5, "stop_sequences": ["zz"], "system": "Be brief."},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000},
        {"tools": [{"name": "get_weather", "input_schema": WEATHER}], "tool_choice": {"type": "any"}},
    ],
)
async def test_a_rendered_message_is_the_same_request_to_the_engine_core(http, engine, options):
    body = {"messages": HI, "max_tokens": 5, "seed": 5, **options}

    expected = await sent(http, engine, "/v1/messages", body)
    found = await sent(http, engine, "/inference/v1/generate", await rendered(http, "/v1/messages", body))

    # Rendering limits max_tokens to the context at once.
    for each in (*expected, *found):
        each.sampling_params.max_tokens = min(each.sampling_params.max_tokens, 500)
    assert found == expected


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7, "top_k": 5, "stop": ["zz"], "instructions": "Be brief."},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"text": {"format": {"type": "json_schema", "name": "w", "schema": WEATHER}}},
        {"tools": [{"type": "function", "name": "get_weather", "parameters": WEATHER}], "tool_choice": "required"},
        {"truncation": "auto"},
    ],
)
async def test_a_rendered_response_is_the_same_request_to_the_engine_core(http, engine, options):
    first = (await http.post("/v1/responses", json={"input": "hi", "max_output_tokens": 5})).json()
    body = {"input": "and then", "max_output_tokens": 5, "seed": 5, "previous_response_id": first["id"], **options}

    expected = await sent(http, engine, "/v1/responses", body)
    found = await sent(http, engine, "/inference/v1/generate", await rendered(http, "/v1/responses", body))

    assert found == expected


async def test_a_rendered_response_is_not_stored(http):
    found = await rendered(http, "/v1/responses", {"input": "hi", "request_id": "once"})

    assert found["request_id"] == "resp-once"
    assert (await http.get("/v1/responses/resp-once")).status_code == 404


async def test_the_prompts_of_a_completion_become_a_request_each(http, engine):
    body = {"prompt": ["hi", "ho"], "seed": 5, "request_id": "many"}

    expected = await sent(http, engine, "/v1/completions", body)
    requests = await rendered(http, "/v1/completions", body)
    found = [await sent(http, engine, "/inference/v1/generate", each) for each in requests]

    assert [each["request_id"] for each in requests] == ["cmpl-many-0", "cmpl-many-1"]
    assert [each["token_ids"] for each in requests] == [[104, 105], [104, 111]]
    assert [(each.prompt_token_ids, each.seed) for [each] in found] == [(each.prompt_token_ids, 5) for each in expected]
    # The prompts of one request share its parameters.
    assert all(each.sampling_params == expected[0].sampling_params for [each] in found)


async def test_a_rendered_request_carries_how_it_is_answered(http):
    options = {"stream": True, "stream_options": {"include_usage": True}, "model": "fake", "return_token_ids": True}

    found = await rendered(http, "/v1/chat/completions", {"messages": HI, "max_tokens": 999, **options})

    assert found["stream_options"] == {"include_usage": True}
    assert (found["stream"], found["model"], found["return_token_ids"]) == (True, "fake", True)
    assert found["sampling_params"]["max_tokens"] == 512 - len(found["token_ids"])


async def test_a_rendered_constraint_has_the_fields_of_the_api_alone(http):
    """Not the name of the field from which it was made: vLLM has no such field."""
    body = {"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_object"}}

    rendered = (await http.post("/v1/chat/completions/render", json=body)).json()

    assert rendered["sampling_params"]["structured_outputs"] == {"json_object": True}


async def test_text_and_log_probabilities_come_when_they_are_asked_for(http):
    body = {"token_ids": [104, 105], "sampling_params": {"max_tokens": 3, "logprobs": 2}, "request_id": "r"}

    tokens = (await http.post("/inference/v1/generate", json=body)).json()
    text = (await http.post("/inference/v1/generate", json={**body, "output_mode": "text", "return_token_ids": True})).json()

    [choice], [shown] = tokens["choices"], text["choices"]
    assert (tokens["request_id"], tokens["output_mode"], text["output_mode"]) == ("generate-tokens-r", "tokens", "text")
    assert shown["text"] == bytes(shown["token_ids"]).decode()
    assert choice["token_ids"] == shown["token_ids"]
    assert "text" not in choice and tokens["prompt_token_ids"] is None
    assert text["prompt_token_ids"] == [104, 105]
    assert [each["token_id"] for each in choice["logprobs"]["content"]] == choice["token_ids"]
    assert [each["token"] for each in shown["logprobs"]["content"]] == [chr(each) for each in shown["token_ids"]]
    assert all(each["top_logprobs"][0]["token_id"] == each["token_id"] for each in choice["logprobs"]["content"])
    assert tokens["usage"]["completion_tokens"] == 3


class ListedIds(FakeEngine):
    """Returns the log-probabilities of the sampled token and of the ids that a request lists."""

    def _rich(self, each, ids, finish):
        output = super()._rich(each, ids, finish)
        rows = [token_id for sampled in ids for token_id in (sampled, *each.request.sampling_params.logprob_token_ids)]
        width = len(rows) // len(ids)
        output.new_logprobs.CopyFrom(
            types_pb2.LogprobsColumns(
                token_ids=pack_u32(rows),
                logprobs=pack_f32([-1.0] * len(rows)),
                ranks=pack_u32([1] * len(ids)),
                num_positions=len(ids),
                width=width,
            )
        )
        return output


@pytest.fixture
async def listed_ids(sockets, tokenizer):
    async with (
        running_engine(ListedIds(sockets / "l"), GRPC) as engine,
        running_frontend(make_settings(tokenizer, engine)) as frontend,
    ):
        yield frontend.http


@pytest.mark.parametrize("mode", ["tokens", "text"])
async def test_all_listed_ids_have_log_probabilities_beside_the_sampled_token(listed_ids, mode):
    sampling = {"max_tokens": 1, "logprob_token_ids": [5, 6, 7]}
    body = {"token_ids": [104, 105], "sampling_params": sampling, "output_mode": mode}

    [choice] = (await listed_ids.post("/inference/v1/generate", json=body)).json()["choices"]

    [position] = choice["logprobs"]["content"]
    key = {"tokens": "token_id", "text": "token"}[mode]
    found = [each[key] for each in position["top_logprobs"]]
    assert found == [position[key], *([5, 6, 7] if mode == "tokens" else map(chr, (5, 6, 7)))]


async def events(http, body):
    found = await http.post("/inference/v1/generate", json={**body, "stream": True})
    *chunks, end = [line.removeprefix("data: ") for line in found.text.splitlines() if line]
    assert end == "[DONE]"
    return [json.loads(each) for each in chunks]


async def test_a_stream_has_the_tokens_of_the_whole_answer_and_its_usage(http):
    body = {"token_ids": [104, 105], "sampling_params": {"max_tokens": 6, "n": 2}, "return_token_ids": True}

    whole = (await http.post("/inference/v1/generate", json=body)).json()
    first, *rest, last = await events(http, {**body, "stream_options": {"include_usage": True}})

    ids = {0: [], 1: []}
    for chunk in (first, *rest):
        [choice] = chunk["choices"]
        ids[choice["index"]] += choice["token_ids"]
    assert ids == {choice["index"]: choice["token_ids"] for choice in whole["choices"]}
    assert first["prompt_token_ids"] == [104, 105]
    assert not any("prompt_token_ids" in each for each in rest)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


async def test_an_abort_ends_a_request_of_this_api_and_no_other(http, engine):
    body = {"token_ids": [104], "sampling_params": {"max_tokens": 400}, "request_id": "mine", "stream": True}
    engine.pause()
    await engine.allow(1)

    async with http.stream("POST", "/inference/v1/generate", json=body) as response:
        lines = response.aiter_lines()
        await anext(lines)
        for name in ("mine", "generate-tokens-mine"):
            answer = await http.post("/inference/v1/abort_requests", json={"request_ids": [name]})
            assert (answer.status_code, answer.content) == (200, b"")
        rest = [json.loads(line[6:]) for line in [each async for each in lines] if line.startswith("data: {")]

    assert [each["choices"][0]["finish_reason"] for each in rest] == ["abort"]


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"token_ids": []}, "token_ids", "at least 1 item"),
        ({"token_ids": [300]}, "token_ids", "Token id 300"),
        ({"token_ids": [-1]}, "token_ids", "Token id -1"),
        ({"token_ids": [104] * 512}, "token_ids", "maximum context length is 512"),
        ({"token_ids": "hi"}, "token_ids", ""),
        ({"sampling_params": None}, "sampling_params", ""),
        ({"sampling_params": {"temprature": 0}}, "sampling_params", "unknown field 'temprature'"),
        ({"sampling_params": {"temperature": 3}}, "temperature", "temperature must be in [0, 2], got 3"),
        ({"sampling_params": {"n": 0}}, "n", "n must be at least 1"),
        ({"sampling_params": {"watermarking": True}}, "watermarking", "watermarking"),
        ({"sampling_params": {"structured_outputs": "a"}}, "sampling_params.structured_outputs", ""),
        ({"sampling_params": {"structured_outputs": {"regex": 5}}}, "sampling_params.structured_outputs.regex", "string"),
        ({"sampling_params": {"structured_outputs": {}}}, "structured_outputs", "none are specified"),
        ({"sampling_params": {"detokenize": False}, "output_mode": "text"}, "output_mode", "detokenize"),
        ({"output_mode": "words"}, "output_mode", ""),
        ({"sampling_params": {"prompt_logprobs": 1}, "stream": True}, "prompt_logprobs", "stream"),
        ({"sampling_params": {"prompt_logprob_token_ids": [1]}, "stream": True}, "prompt_logprob_token_ids", "stream"),
        ({"sampling_params": {"prompt_logprob_token_ids": [1]}}, "prompt_logprob_start", "leaves no token to score"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream=True"),
        ({"features": {"mm_hashes": {}}}, "features", "features is not supported"),
        ({"content_parts": [{"type": "image_url"}]}, "content_parts", "content_parts is not supported"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params", "kv_transfer_params needs an engine core with --kv-role"),
        ({"ec_transfer_params": {"a": 1}}, "ec_transfer_params", "ec_transfer_params is not supported"),
        ({"cache_salt": "a/b"}, "cache_salt", "cache_salt"),
        ({"cache_salt": ""}, "cache_salt", "at least 1 character"),
    ],
)
async def test_what_is_wrong_is_refused_with_its_field(http, changes, field, message):
    body = {"token_ids": [104], "sampling_params": {"max_tokens": 2}, **changes}

    answer = await http.post("/inference/v1/generate", json=body)

    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == field
    assert message in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/completions", {"prompt": "hi", "echo": True}, "echo"),
        ("/v1/completions", {"prompt": "hi", "best_of": 2}, "best_of"),
        ("/v1/completions", {"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ("/v1/completions", {"prompt": "hi", "return_token_offsets": True}, "return_token_offsets"),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 0}, "max_tokens"),
        ("/v1/completions", {"prompt": ["hi", [300]]}, "prompt"),
        ("/v1/chat/completions", {"messages": HI, "prediction": {"content": "a"}}, "prediction"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "prompt_embeds", "data": "AAAA"}]}]},
            "messages[0].content[0]",
        ),
        ("/v1/chat/completions", {"messages": HI, "temperature": 3}, "temperature"),
        ("/v1/responses", {"input": "hi", "background": True}, "background"),
        ("/v1/responses", {"input": "hi", "temperature": 3}, "temperature"),
        ("/v1/responses", {"input": []}, "input"),
    ],
)
async def test_what_cannot_be_rendered_is_refused_with_its_field(http, path, body, field):
    answer = await http.post(f"{path}/render", json=body)

    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field
