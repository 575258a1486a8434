"""Completions and chats of OpenAI's API over a real port: answers, streams, prompts, log-probabilities, parameters."""

import json

import openai
import pytest

from tests.frontend.api.http.event_streams import events
from tests.frontend.fakes import BOS, EOS, TEXT
from tests.frontend.fakes.alphabet import BOS_NAME


@pytest.fixture
async def client(frontend):
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{frontend.port}/v1", api_key="none", max_retries=0) as opened:
        yield opened


async def test_completion_by_the_official_client(client):
    completion = await client.completions.create(model="fake", prompt="hi", max_tokens=9)

    assert (completion.choices[0].text, completion.choices[0].finish_reason) == (TEXT[:9], "length")
    assert completion.usage.model_dump(include={"prompt_tokens", "completion_tokens", "total_tokens"}) == {
        "prompt_tokens": 2,
        "completion_tokens": 9,
        "total_tokens": 11,
    }
    assert completion.id.startswith("cmpl-")


async def test_chat_by_the_official_client(client):
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]

    chat = await client.chat.completions.create(model="fake", messages=messages, max_completion_tokens=9)

    assert chat.choices[0].message.content == TEXT[:9]
    assert chat.choices[0].message.role == "assistant"
    assert chat.choices[0].finish_reason == "length"
    assert chat.usage.prompt_tokens == len("<system>be\n<user>hi\n<assistant>")


@pytest.mark.parametrize("stop", [None, ["brown"]])
async def test_streamed_chat_equals_the_whole_one(client, stop):
    messages = [{"role": "user", "content": "hi"}]
    whole = await client.chat.completions.create(model="fake", messages=messages, max_tokens=30, stop=stop)

    stream = await client.chat.completions.create(
        model="fake", messages=messages, max_tokens=30, stop=stop, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    assert chunks[0].choices[0].delta.role == "assistant"
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole.choices[0].message.content
    )
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert reasons == [whole.choices[0].finish_reason]
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage)


async def test_streamed_completion_equals_the_whole_one(http):
    body = {"prompt": "hi", "max_tokens": 30, "n": 2, "stop": ["dog"]}
    whole = (await http.post("/v1/completions", json=body)).json()

    chunks = await events(http, "/v1/completions", **body)

    texts = {0: "", 1: ""}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {choice["index"]: choice["text"] for choice in whole["choices"]}
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize(
    ("prompt", "texts", "prompt_tokens"),
    [("ab", ["ab"], 2), (["ab", "cde"], ["ab", "cde"], 5), ([97, 98], ["ab"], 2), ([[97], [98, 99]], ["a", "bc"], 3)],
)
@pytest.mark.parametrize("n", [1, 2])
async def test_prompts_of_all_forms_with_echo(http, prompt, texts, prompt_tokens, n):
    response = await http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 3, "echo": True, "n": n})

    body = response.json()
    assert [choice["text"] for choice in body["choices"]] == [text + "The" for text in texts for _ in range(n)]
    assert [choice["index"] for choice in body["choices"]] == list(range(len(texts) * n))
    assert body["usage"]["prompt_tokens"] == prompt_tokens
    assert body["usage"]["completion_tokens"] == 3 * len(texts) * n


async def test_echo_without_tokens_scores_the_prompt(http):
    body = {"prompt": "abc", "max_tokens": 0, "echo": True, "logprobs": 1}

    choice = (await http.post("/v1/completions", json=body)).json()["choices"][0]

    assert choice["text"] == "abc"
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]


async def test_text_offsets_of_an_echo_do_not_count_the_name_of_bos(http):
    body = {"prompt": [BOS, *b"ab"], "max_tokens": 2, "echo": True, "logprobs": 0}

    choice = (await http.post("/v1/completions", json=body)).json()["choices"][0]

    assert choice["text"] == "abTh"
    assert choice["logprobs"]["tokens"] == [BOS_NAME, "a", "b", "T", "h"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2, 3]


@pytest.mark.parametrize(("side", "kept"), [("left", "cd"), ("right", "ab")])
async def test_echo_of_a_truncated_text_is_what_the_model_has_read(http, side, kept):
    body = {
        "prompt": "abcd",
        "max_tokens": 1,
        "echo": True,
        "logprobs": 0,
        "truncate_prompt_tokens": 2,
        "truncation_side": side,
    }

    choice = (await http.post("/v1/completions", json=body)).json()["choices"][0]

    assert choice["text"] == f"{kept}T"
    assert choice["logprobs"]["tokens"] == [*kept, "T"]


async def test_echo_of_a_prompt_of_one_token_has_its_position(http):
    body = {"prompt": "a", "max_tokens": 1, "echo": True, "logprobs": 1}

    choice = (await http.post("/v1/completions", json=body)).json()["choices"][0]

    assert choice["logprobs"]["token_logprobs"] == [None, -0.5]


async def test_streamed_echo_comes_first(http):
    chunks = await events(http, "/v1/completions", prompt=["ab", "c"], max_tokens=3, echo=True)

    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == {0: "abThe", 1: "cThe"}


async def test_every_choice_of_a_streamed_echo_has_the_prompt_s_logprobs(http, engine):
    """Also if the engine core computes the first tokens of the choices in different steps."""
    step = engine._step

    def one_by_one(running):
        first = next(iter(running))
        waiting = {name: running.pop(name) for name in list(running) if name != first}
        outputs = step(running)
        running.update(waiting)
        return outputs

    engine._step = one_by_one
    chunks = await events(http, "/v1/completions", prompt="abc", max_tokens=2, echo=True, logprobs=1, n=2)

    found = {0: [], 1: []}
    for [choice] in (chunk["choices"] for chunk in chunks):
        columns = choice["logprobs"]
        found[choice["index"]] += zip(columns["tokens"], columns["token_logprobs"], columns["text_offset"], strict=True)
    whole = [("a", None, 0), ("b", -0.5, 1), ("c", -0.5, 2), ("T", -0.5, 3), ("h", -0.5, 4)]
    assert found == {0: whole, 1: whole}


async def test_completion_logprobs(http):
    body = {"prompt": "hi", "max_tokens": 2, "logprobs": 1}

    logprobs = (await http.post("/v1/completions", json=body)).json()["choices"][0]["logprobs"]

    assert logprobs == {
        "tokens": ["T", "h"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"T": -0.5}, {"h": -0.5}],
        "text_offset": [0, 1],
    }


async def test_chat_logprobs(client):
    messages = [{"role": "user", "content": "hi"}]

    chat = await client.chat.completions.create(model="fake", messages=messages, max_tokens=2, logprobs=True, top_logprobs=2)

    first = chat.choices[0].logprobs.content[0]
    assert (first.token, first.logprob, first.bytes) == ("T", -0.5, [84])
    assert [top.token for top in first.top_logprobs] == ["T", "U"]


async def test_sampling_fields_reach_the_engine(http, engine):
    body = {
        "prompt": "hi",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 5,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
        "logit_bias": {"5": 3},
        "stop_token_ids": [9],
        "ignore_eos": True,
        "min_tokens": 2,
        "max_tokens": 4,
        "priority": 3,
    }

    await http.post("/v1/completions", json=body)

    [request] = engine.requests
    sent = request.sampling_params
    assert (sent.temperature, sent.top_k, sent.seed, sent.min_tokens, sent.max_tokens) == (0.5, 7, 5, 2, 4)
    assert [round(value, 3) for value in (sent.top_p, sent.min_p, sent.repetition_penalty)] == [0.9, 0.1, 1.5]
    assert (sent.presence_penalty, sent.frequency_penalty, dict(sent.logit_bias)) == (1, -1, {5: 3})
    assert (list(sent.stop_token_ids), sent.ignore_eos, request.priority, request.eos_token_id) == ([9], True, 3, EOS)


SCHEMA = {"type": "object", "required": ["a"]}


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        {"type": "json_object", "schema": SCHEMA},  # llama.cpp
        {"type": "json_object", "value": SCHEMA},  # huggingface_hub's InferenceClient, of any json_schema
    ],
)
async def test_response_format_reaches_the_engine(http, engine, form):
    await http.post("/v1/completions", json={"prompt": "hi", "response_format": form})

    assert json.loads(engine.requests[0].sampling_params.structured_outputs.json_schema) == SCHEMA


@pytest.mark.parametrize(("newer", "status"), [({"regex": "[a-z]+"}, 200), ({"choice": ["a"]}, 400)])
async def test_an_older_constraint_may_only_repeat_structured_outputs(http, engine, newer, status):
    """Guidance's VLLMModel sends both, for vLLM before and after 0.12."""
    body = {"prompt": "hi", "guided_regex": "[a-z]+", "structured_outputs": newer}

    response = await http.post("/v1/completions", json=body)

    assert response.status_code == status
    assert [each.sampling_params.structured_outputs.regex for each in engine.requests] == ["[a-z]+"] * (status == 200)


async def test_a_response_format_has_one_schema(http):
    form = {"type": "json_object", "schema": SCHEMA, "value": SCHEMA}

    refused = await http.post("/v1/completions", json={"prompt": "hi", "response_format": form})

    message = "response_format.schema and response_format.value are the same field: only one can be given."
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, message)


async def test_chat_without_max_tokens_may_fill_the_context(http, engine):
    engine.reply = lambda _, position: EOS

    await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]})

    [request] = engine.requests
    assert request.sampling_params.max_tokens == 512 - len(request.prompt_token_ids) // 4


async def test_generation_config_gives_the_default_temperature(tokenizer, engine, serve_frontend):
    tokenizer.generation_config = '{"temperature": 0.5}'
    async with serve_frontend() as frontend:
        await frontend.http.post("/v1/completions", json={"prompt": "hi"})
        await frontend.http.post("/v1/completions", json={"prompt": "hi", "temperature": 0})

    assert [request.sampling_params.temperature for request in engine.requests] == [0.5, 0.0]
