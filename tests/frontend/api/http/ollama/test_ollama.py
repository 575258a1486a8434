"""Ollama's API over a real port: answers, lines, tools, thinking, options, and errors in its shape."""

import json

import pytest

from tests.frontend.fakes import TEXT
from tests.frontend.turns import FORMATS, TEXTS, WEATHER, call, writes
from tetrad.frontend.api.http.schemas import large_parts
from tetrad.frontend.api.http.sse import rendering

HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": WEATHER}} for name in ("get_weather", "get_time")]
PARIS = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
TIME = {"function": {"name": "get_time", "arguments": {}}}
TURNS = {
    "text": {"content": TEXTS["text"]},
    "reasoning": {"content": "The answer is 4.", "thinking": "Let me think."},
    "call": {"content": "", "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Zürich"}}}]},
    "calls": {"content": "", "tool_calls": [PARIS, TIME]},
    "text and call": {"content": "Let me look.\n", "tool_calls": [PARIS]},
    "all": {"content": "Let me look.\n", "thinking": "I need the weather.", "tool_calls": [PARIS, TIME]},
    "nothing": {"content": ""},
}
TWO_CITIES = "\n".join(call("get_weather", city=city) for city in ("Paris", "London"))


@pytest.fixture
async def frontend(serve_frontend):
    async with serve_frontend(**FORMATS) as running:
        yield running


async def lines(http, path, **body):
    """Return the lines of a stream."""
    answer = await http.post(path, json={"model": "fake", **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


async def whole(http, path, **body):
    answer = await http.post(path, json={"model": "fake", "stream": False, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def shown(message):
    """Return a message without role and ids, which are made anew for each answer."""
    calls = [{"function": call["function"]} for call in message.get("tool_calls", ())]
    kept = {name: message[name] for name in ("content", "thinking") if name in message}
    return kept | ({"tool_calls": calls} if calls else {})


def added(messages):
    """Return the message that the parts of a stream add up to."""
    thinking = "".join(message.get("thinking", "") for message in messages)
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    total = {"content": "".join(message["content"] for message in messages)}
    return shown(total | ({"thinking": thinking} if thinking else {}) | {"tool_calls": calls})


@pytest.mark.parametrize("tokens_per_step", [1, 200])
@pytest.mark.parametrize("kind", TURNS)
async def test_a_turn_is_the_same_whole_and_line_by_line(http, engine, kind, tokens_per_step):
    engine.tokens_per_step = tokens_per_step
    writes(engine, TEXTS[kind])

    answer = await whole(http, "/api/chat", messages=HI, tools=TOOLS)
    parts = await lines(http, "/api/chat", messages=HI, tools=TOOLS)

    assert shown(answer["message"]) == TURNS[kind]
    assert added([part["message"] for part in parts]) == TURNS[kind]
    assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert answer["done_reason"] == parts[-1]["done_reason"] == "stop"


@pytest.mark.parametrize("cut_by", [{"num_predict": TWO_CITIES.index("London") + 3}, {"stop": "London"}])
async def test_a_call_that_was_cut_off_is_not_shown(http, engine, cut_by):
    """Ollama's clients run every call that they get, whatever the reason of the end."""
    writes(engine, TWO_CITIES)

    answer = await whole(http, "/api/chat", messages=HI, tools=TOOLS, options=cut_by)
    parts = await lines(http, "/api/chat", messages=HI, tools=TOOLS, options=cut_by)

    assert shown(answer["message"]) == added([part["message"] for part in parts]) == {"content": "", "tool_calls": [PARIS]}


async def test_the_last_line_counts_tokens_and_nanoseconds(http):
    *_, last = await lines(http, "/api/generate", prompt="hi", raw=True, options={"num_predict": 5})

    assert (last["prompt_eval_count"], last["eval_count"], last["done_reason"]) == (len("hi"), 5, "length")
    assert last["response"] == ""
    assert last["total_duration"] == last["prompt_eval_duration"] + last["eval_duration"] > 0


async def test_a_prompt_goes_through_the_chat_template_unless_it_is_raw(http, engine):
    answer = await whole(http, "/api/generate", prompt="hi", system="be", options={"num_predict": 9})
    raw = await whole(http, "/api/generate", prompt="hi", raw=True, options={"num_predict": 9})

    assert answer["response"] == raw["response"] == TEXT[:9]
    assert answer["prompt_eval_count"] == len("<system>be\n<user>hi\n<assistant>")
    assert raw["prompt_eval_count"] == len("hi")


async def test_options_reach_the_engine(http, engine):
    options = {"temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "seed": 3, "repeat_penalty": 1.2, "num_ctx": 64}
    options |= {"presence_penalty": 0.25, "frequency_penalty": 0.75, "num_predict": 4, "stop": "zzz", "repeat_last_n": -1}

    await whole(http, "/api/chat", messages=HI, options=options)

    params = engine.requests[-1].sampling_params
    told = (params.temperature, params.top_k, params.top_p, params.min_p, params.seed, params.max_tokens)
    assert told == pytest.approx((0.5, 7, 0.9, 0.1, 3, 4))
    penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    assert penalties == pytest.approx((1.2, 0.25, 0.75))


async def test_a_format_constrains_the_answer_also_if_it_is_an_empty_schema(http, engine):
    engine.tokens_per_step = 64

    await whole(http, "/api/generate", prompt="hi", format={})
    assert engine.requests[-1].sampling_params.structured_outputs.json_schema == "{}"

    await whole(http, "/api/generate", prompt="hi", format="")
    assert not engine.requests[-1].sampling_params.HasField("structured_outputs")


@pytest.mark.parametrize("num_many", [1, 4096], ids=["in slices", "in one piece"])
async def test_logprobs_of_each_token_are_shown(http, monkeypatch, num_many):
    monkeypatch.setattr(rendering, "_MANY", num_many)
    monkeypatch.setattr(large_parts, "_LEAST", num_many)
    answer = await whole(
        http, "/api/generate", prompt="hi", raw=True, logprobs=True, top_logprobs=2, options={"num_predict": 3}
    )

    assert [each["token"] for each in answer["logprobs"]] == list(TEXT[:3])
    assert all(len(each["top_logprobs"]) == 2 for each in answer["logprobs"])


async def test_results_answer_the_calls_they_name(http, tokenizer, engine):
    engine.tokens_per_step = 64
    calls = [{"function": {"name": name, "arguments": {}}} for name in ("get_time", "get_weather")]
    messages = [*HI, {"role": "assistant", "tool_calls": calls}]
    messages += [{"role": "tool", "tool_name": name, "content": name} for name in ("get_weather", "get_time")]

    await whole(http, "/api/chat", messages=messages, tools=TOOLS)

    *_, asked, weather, time = json.loads(tokenizer.rendered[-1].messages_json)
    first, second = (call["id"] for call in asked["tool_calls"])
    assert (weather["tool_call_id"], time["tool_call_id"]) == (second, first)
    # Mistral's templates refuse other ids.
    assert all(len(each) == 9 and each.isalnum() for each in (first, second))


async def test_without_a_prompt_the_model_is_loaded_already(http):
    assert (await whole(http, "/api/generate"))["done_reason"] == "load"
    assert [line["done_reason"] for line in await lines(http, "/api/chat", messages=[])] == ["load"]


async def test_the_served_model_is_listed_and_shown(http):
    tags, running = (await http.get("/api/tags")).json(), (await http.get("/api/ps")).json()
    shown_model = (await http.post("/api/show", json={"model": "fake:latest"})).json()

    assert [model["name"] for model in tags["models"]] == [model["name"] for model in running["models"]] == ["fake"]
    info = shown_model["model_info"]
    assert info[f"{info['general.architecture']}.context_length"] == running["models"][0]["context_length"]
    assert "completion" in shown_model["capabilities"]


async def test_the_version_is_of_an_ollama_that_clients_accept(http):
    """Codex refuses versions before 0.13.4, VS Code those before 0.6.4."""
    version = (await http.get("/api/version")).json()["version"]

    assert tuple(map(int, version.split("."))) >= (0, 13, 4)


async def test_models_have_digests_of_which_clients_show_the_beginning(serve_frontend):
    async with serve_frontend(served_model_names=("a", "b")) as frontend:
        tags, running = [(await frontend.http.get(f"/api/{path}")).json()["models"] for path in ("tags", "ps")]

    digests = [model["digest"] for model in tags]
    assert [model["digest"] for model in running] == digests
    assert len({digest[:12] for digest in digests}) == 2 and all(len(digest) == 64 for digest in digests)


REFUSED = {
    "keep_alive": {"keep_alive": "0s"},
    "num_gpu": {"options": {"num_gpu": 1}},
    "mirostat": {"options": {"mirostat": 2}},
    "num_ctx": {"options": {"num_ctx": 10_000_000}},
    "repeat_last_n": {"options": {"repeat_last_n": 64}},
    "num_predict": {"options": {"num_predict": 0}},
    "temperature": {"options": {"temperature": 3}},
    "images": {"messages": [{"role": "user", "content": "hi", "images": ["aGk="]}]},
    "role": {"messages": [{"role": "guest", "content": "hi"}]},
    "think": {"think": "very"},
    "top_logprobs": {"top_logprobs": 2},
}


@pytest.mark.parametrize("field", REFUSED)
async def test_what_cannot_be_served_is_refused_by_its_name(http, field):
    answer = await http.post("/api/chat", json={"model": "fake", "messages": HI, **REFUSED[field]})

    assert answer.status_code == 400
    assert set(answer.json()) == {"error"}
    assert field in answer.json()["error"]


@pytest.mark.parametrize("field", ["suffix", "template", "context", "images"])
async def test_a_prompt_s_fields_that_cannot_be_served_are_refused(http, field):
    value = {"suffix": "x", "template": "x", "context": [1], "images": ["aGk="]}[field]
    answer = await http.post("/api/generate", json={"prompt": "hi", field: value})

    assert (answer.status_code, field in answer.json()["error"]) == (400, True)


async def test_a_raw_prompt_cannot_ask_for_thinking(http):
    answer = await http.post("/api/generate", json={"prompt": "hi", "raw": True, "think": True})

    assert (answer.status_code, "think is not supported with raw" in answer.json()["error"]) == (400, True)


async def test_an_unknown_model_is_not_found(http):
    answer = await http.post("/api/generate", json={"model": "other", "prompt": "hi"})

    assert (answer.status_code, answer.json()) == (404, {"error": "The model `other` does not exist."})


async def test_an_unknown_path_is_refused_in_ollama_s_form(http):
    answer = await http.post("/api/pull", json={"model": "fake"})

    assert (answer.status_code, answer.json()) == (404, {"error": "There is nothing at /api/pull."})


async def test_a_wrong_method_is_refused_in_ollama_s_form(http):
    answer = await http.get("/api/chat")

    assert (answer.status_code, set(answer.json())) == (405, {"error"})


async def test_embeddings_of_a_model_that_generates_are_refused(http):
    for path, body in (("/api/embed", {"input": "hi"}), ("/api/embeddings", {"prompt": "hi"})):
        answer = await http.post(path, json=body)

        assert (answer.status_code, "does not support Embeddings API" in answer.json()["error"]) == (400, True)


async def test_a_failure_after_the_first_line_is_the_last_line(serve_frontend, engine):
    engine.step_delay_s = 0.01
    async with serve_frontend(**FORMATS, recovery_timeout_s=0.2) as frontend:
        body = {"prompt": "hi", "raw": True, "options": {"num_predict": 400}}
        async with frontend.http.stream("POST", "/api/generate", json=body) as answer:
            begun, *rest = [json.loads(line) async for line in _after_first(answer.aiter_lines(), engine.kill)]

    assert begun["response"]
    assert set(rest[-1]) == {"error"}


async def _after_first(stream, happens):
    """Yield lines; something happens behind the first."""
    yield await anext(stream)
    await happens()
    async for line in stream:
        yield line


async def test_a_key_is_asked_for_in_ollama_s_form(serve_frontend):
    async with serve_frontend(api_key=("secret",)) as frontend:
        answer = await frontend.http.get("/api/tags")

    assert (answer.status_code, set(answer.json())) == (401, {"error"})


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "application/octet-stream"])
async def test_a_body_needs_no_content_type_of_json(http, content_type):
    """curl sends the first one by default, LiteLLM's ollama_chat the second one."""
    bodies = {
        "/api/generate": {"prompt": "hi", "stream": False},
        "/api/chat": {"messages": HI, "stream": False},
        "/api/show": {},
    }

    for path, body in bodies.items():
        content = json.dumps({"model": "fake", **body})
        answer = await http.post(path, content=content, headers={"content-type": content_type})

        assert answer.status_code == 200, answer.text


async def test_a_web_page_must_send_json(http, engine):
    """A browser sends other types to this server without a question whether the page's origin is allowed."""
    headers = {"content-type": "text/plain", "origin": "https://page.example"}

    answer = await http.post("/api/generate", content=b'{"model": "fake", "prompt": "hi"}', headers=headers)

    assert answer.status_code == 415
    assert answer.json() == {"error": "The body must be application/json, got 'text/plain'."}
    assert engine.requests == []
