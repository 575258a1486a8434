"""Derendered streams: the chunks of a generation, derendered one by one, are the stream of the request itself.

However the tokens are cut into chunks: joined deltas are compared, since streams may be cut anywhere.
"""

import asyncio
import json
from itertools import product

import pytest

from tests.frontend.fakes import EOS
from tests.frontend.parsing.tools.reading import PROPERTIES
from tests.frontend.parsing.tools.test_laws import OUTPUTS
from tests.frontend.turns import FORMATS, TEXTS, WEATHER, writes
from tests.grids import grid

HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": WEATHER}} for name in ("get_weather", "get_time")]
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
SIZES = [1, 3]
# Each chunk is derendered after all before it: a turn in chunks costs the square of their number. So `make test` cuts the turn
# with all changes between kinds of output, and the one with long characters, into tokens, and the other turns into threes.
TURNS = grid(product(TEXTS, SIZES), lambda turn, size: size == (1 if turn in ("all", "unicode") else 3))
PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
PREFIX = {"chat": "chat", "text": "completion"}


@pytest.fixture
async def frontend(serve_frontend):
    async with serve_frontend(**FORMATS) as running:
        yield running


@pytest.fixture
def engine(engine):
    """An engine core of few steps: the tests cut what it generates themselves."""
    engine.tokens_per_step = 5
    return engine


async def told(http, path, body, status=200):
    answer = await http.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def streamed(http, path, body):
    async with http.stream("POST", path, json=body) as response:
        assert response.status_code == 200, await response.aread()
        return [json.loads(line[6:]) async for line in response.aiter_lines() if line.startswith("data: {")]


def recut(chunks, size):
    """Return the chunks of a generation, each with at most `size` tokens: those of each choice joined and cut anew."""
    wholes, rest = {}, [chunk for chunk in chunks if not chunk["choices"]]
    for chunk in chunks:
        for choice in chunk["choices"]:
            whole = wholes.setdefault(choice["index"], {"token_ids": [], "content": []})
            whole["token_ids"] += choice["token_ids"]
            whole["content"] += (choice["logprobs"] or {}).get("content", [])
            whole["end"] = choice
    first = {key: value for key, value in chunks[0].items() if key != "choices"}
    pieces = []
    for index, whole in wholes.items():
        ids, content = whole["token_ids"], whole["content"]
        for number, start in enumerate(range(0, len(ids), size)):
            stop = start + size
            choice = {"index": index, "token_ids": ids[start:stop], "finish_reason": None, "stop_reason": None}
            if content:
                choice["logprobs"] = {"content": content[start:stop]}
            if stop >= len(ids):
                choice |= {name: whole["end"][name] for name in ("finish_reason", "stop_reason")}
            pieces.append((number, index, choice))
    pieces.sort(key=lambda piece: piece[:2])  # the choices advance together
    return [first | {"choices": [choice]} for _, _, choice in pieces] + rest


async def derendered(http, kind, chunks, more):
    """Return the chunks of the derender endpoint; each call has the state of the one before."""
    found, state = [], None
    for chunk in chunks:
        body = {"stream": True, "generate_chunk": chunk, "stream_state": state} | more
        answer = await told(http, f"{PATHS[kind]}/derender", body)
        found.append(answer["chunk"])
        state = answer["stream_state"]
    return found


def joined(chunks):
    """Return the choices of a stream with their deltas joined, and its usage; without ids of calls."""
    choices, usage = {}, None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            _join(choices.setdefault(choice["index"], {}), choice)
    if usage is not None:
        usage.pop("prompt_tokens_details", None)  # the second request finds the prompt of the first
    return choices, usage


def _join(whole, part):
    for name, value in part.items():
        if value is None or name in ("index", "id") or value == [] or value == {}:
            continue
        if isinstance(value, dict):
            _join(whole.setdefault(name, {}), value)
        elif name == "tool_calls":
            for call in value:
                _join(whole.setdefault(name, {}).setdefault(call["index"], {}), call)
        elif isinstance(value, (str, list)) and name not in ("role", "type", "name", "finish_reason", "stop_reason"):
            whole[name] = whole[name] + value if name in whole else value
        else:
            whole[name] = value


async def in_parts(http, kind, body, sizes):
    """Return the chunks of a request that is rendered, generated and derendered in chunks of a size in tokens, by size."""
    path = PATHS[kind]
    rendered = await told(http, f"{path}/render", body)
    request = rendered[0] if isinstance(rendered, list) else rendered
    chunks = await streamed(http, "/inference/v1/generate", request)
    more = {f"{PREFIX[kind]}_request": body}
    more |= {"prompt_token_ids": request["token_ids"]} if kind == "text" else {}
    found = await asyncio.gather(*(derendered(http, kind, recut(chunks, size), more) for size in sizes))
    return dict(zip(sizes, found, strict=True))


def all_joined(found):
    return {size: joined(chunks) for size, chunks in found.items()}


@pytest.mark.parametrize(("turn", "size"), TURNS)
async def test_a_chat_stream_in_parts_is_the_stream_of_the_chat(http, engine, turn, size):
    writes(engine, TEXTS[turn])
    body = {"messages": HI, "tools": TOOLS, "seed": 5, **STREAM}

    expected = await streamed(http, "/v1/chat/completions", body)
    found = await in_parts(http, "chat", body, [size])

    assert all_joined(found) == {size: joined(expected)}
    assert {len({(chunk["id"], chunk["created"]) for chunk in chunks}) for chunks in found.values()} == {1}


FORMAT_TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": PROPERTIES}}},
    {"type": "function", "function": {"name": "g"}},
]


@pytest.mark.parametrize(("name", "size"), grid(product(OUTPUTS, [13, 3]), lambda name, size: size == 13))
async def test_every_format_of_calls_is_derendered_in_chunks(serve_frontend, engine, name, size):
    writes(engine, OUTPUTS[name])
    body = {"messages": HI, "tools": FORMAT_TOOLS, "seed": 5, **STREAM}
    reasoning = "gpt_oss" if name == "openai" else "none"

    async with serve_frontend(tool_call_parser=name, reasoning_parser=reasoning) as running:
        expected = await streamed(running.http, "/v1/chat/completions", body)
        found = await in_parts(running.http, "chat", body, [size])

    assert all_joined(found) == {size: joined(expected)}


@pytest.mark.parametrize(
    "options",
    [
        {"n": 2, "logprobs": True, "top_logprobs": 1, "return_token_ids": True, "return_prompt_text": True},
        {"stop": ["The"]},
        {"stop": ["The", "day"], "include_stop_str_in_output": True, "logprobs": True},
        {"stop_token_ids": [101]},
        {"stop_token_ids": [101], "include_stop_str_in_output": True},
        {"max_tokens": 9},
        {"include_reasoning": False, "tool_choice": "none"},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"stream_options": {}},
    ],
)
@pytest.mark.parametrize(("turn", "size"), [("unicode", 3), ("all", 17)])
async def test_what_a_chat_wants_to_see_is_in_its_derendered_stream(http, engine, turn, size, options):
    writes(engine, TEXTS[turn])
    body = {"messages": HI, "tools": TOOLS, "seed": 5, **STREAM} | options

    expected = await streamed(http, "/v1/chat/completions", body)
    found = await in_parts(http, "chat", body, [size, 1000])

    assert all_joined(found) == dict.fromkeys([size, 1000], joined(expected))
    for chunks in found.values():
        assert chunks[0].get("prompt_token_ids") == expected[0].get("prompt_token_ids")
        assert chunks[0].get("prompt_text") == expected[0].get("prompt_text")
        assert {"usage" in chunk for chunk in chunks[:-1]} <= {"usage" in expected[0]}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n": 2, "logprobs": 1},
        {"logprobs": 1, "return_tokens_as_token_ids": True},
        {"stop": ["ש", "י"]},
        {"stop": ["ש"], "include_stop_str_in_output": True, "logprobs": 1},
        {"max_tokens": 6, "return_token_ids": True},
        {"max_tokens": 12, "logprobs": 1, "return_token_ids": True},
    ],
)
async def test_a_completion_stream_in_parts_is_the_stream_of_the_completion(http, engine, options):
    writes(engine, TEXTS["unicode"])
    body = {"prompt": "hi", "seed": 5, "max_tokens": 60, **STREAM} | options

    expected = await streamed(http, "/v1/completions", body)
    found = await in_parts(http, "text", body, SIZES)

    assert all_joined(found) == dict.fromkeys(SIZES, joined(expected))


def chunk_of(ids, index=0, **more):
    return {"request_id": "r", "choices": [{"index": index, "token_ids": list(ids), **more}]}


async def test_a_character_that_a_border_cuts_comes_out_whole(http):
    chunks = [chunk_of([byte]) for byte in "👩é".encode()]

    found = await derendered(http, "text", chunks, {})

    assert [chunk["choices"][0]["text"] for chunk in found] == ["", "", "", "👩", "", "é"]


async def test_an_unfinished_character_comes_out_at_the_end(http):
    chunks = [chunk_of("a👩".encode()[:3]), chunk_of([EOS], finish_reason="stop")]

    found = await derendered(http, "text", chunks, {})

    assert "".join(chunk["choices"][0]["text"] for chunk in found) == "a\N{REPLACEMENT CHARACTER}"
    assert found[-1]["choices"][0]["finish_reason"] == "stop"


async def test_the_reason_of_a_repetition_is_no_stop_string(http):
    chunk = chunk_of(b"aaaa", finish_reason="repetition", stop_reason="repetition_detected")

    [found] = await derendered(http, "text", [chunk], {})

    [choice] = found["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("aaaa", "repetition", "repetition_detected")


async def test_a_client_may_keep_a_state_for_each_choice(http):
    first = await told(http, "/v1/completions/derender", {"stream": True, "generate_chunk": chunk_of(b"a", 0)})
    other = await told(http, "/v1/completions/derender", {"stream": True, "generate_chunk": chunk_of("é".encode()[:1], 1)})

    body = {"stream": True, "generate_chunk": chunk_of("é".encode()[1:], 1), "stream_state": other["stream_state"]}
    found = await told(http, "/v1/completions/derender", body)

    assert first["chunk"]["choices"][0]["text"] == "a"
    assert found["chunk"]["choices"][0]["text"] == "é"
    assert [choice["index"] for choice in found["stream_state"]["choices"]] == [1]


async def test_several_choices_of_a_chunk_are_derendered_together(http):
    chunk = {"request_id": "r", "choices": [chunk_of(b"a", 0)["choices"][0], chunk_of(b"b", 1)["choices"][0]]}

    found = await told(http, "/v1/completions/derender", {"stream": True, "generate_chunk": chunk})

    assert [(choice["index"], choice["text"]) for choice in found["chunk"]["choices"]] == [(0, "a"), (1, "b")]


async def test_prompt_tokens_are_as_told(http):
    chunk = {"request_id": "r", "choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 3}}

    found = await told(http, "/v1/completions/derender", {"stream": True, "generate_chunk": chunk, "prompt_tokens": 4})

    usage = found["chunk"]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (4, 3, 7)


async def test_replays_leave_nothing_open(http, tokenizer):
    for _ in range(3):
        await derendered(http, "text", [chunk_of(b"a"), chunk_of(b"b")], {})

    assert len(tokenizer.open_handles) <= 1


def state_of(**changes):
    choice = {"index": 0, "output_token_ids": [104, 105], "output_chunk_lens": [2]}
    choice |= {name: changes.pop(name) for name in list(changes) if name in (*choice, "finish_reason", "prior")}
    return {"request_id": "r", "created": 1, "context_token_ids": [], "choices": [choice]} | changes


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"stream_state": 5}, "stream_state"),
        ({"stream_state": {"prev_tokens": ["a"], "prefix_offset": 0}}, "stream_state"),
        ({"stream_state": state_of(prev_tokens=["a"])}, "stream_state.prev_tokens"),
        ({"stream_state": state_of(request_id="other")}, "stream_state.request_id"),
        ({"stream_state": state_of(output_chunk_lens=[1])}, "stream_state.choices.output_chunk_lens"),
        ({"stream_state": state_of(output_chunk_lens=[3, -1])}, "stream_state.choices.0.output_chunk_lens.1"),
        ({"stream_state": state_of(output_token_ids=[104, 300])}, "stream_state.choices.output_token_ids"),
        ({"stream_state": state_of(output_token_ids=[104, -1])}, "stream_state.choices.output_token_ids"),
        ({"stream_state": state_of(prior=[])}, "stream_state.choices.0.prior"),
        ({"stream_state": state_of(context_token_ids=[104] * 17)}, "stream_state.context_token_ids"),
        ({"stream_state": state_of(choices=state_of()["choices"] * 2)}, "stream_state.choices"),
        (
            {"stream_state": state_of(output_chunk_lens=[2] + [0] * 600)},
            "stream_state.choices.output_chunk_lens",
        ),
        ({"stream_state": state_of(finish_reason="stop")}, "generate_chunk"),
        ({"stream_state": state_of(output_token_ids=[104] * 512, output_chunk_lens=[512])}, "generate_chunk"),
        ({"generate_chunk": chunk_of([104] * 513)}, "generate_chunk"),
        ({"generate_chunk": chunk_of([300])}, "generate_chunk"),
        ({"generate_chunk": {"request_id": "r", "choices": chunk_of([104])["choices"] * 2}}, "generate_chunk"),
        ({"generate_chunk": chunk_of([104], finish_reason="stop", stop_reason="h")}, "generate_chunk"),
        ({"generate_chunk": chunk_of([104], logprobs={"content": []})}, "logprobs"),
        ({"generate_chunk": chunk_of([104]) | {"output_mode": "text"}}, "generate_chunk.output_mode"),
        ({"generate_chunk": None}, "generate_chunk"),
        ({"completion_request": {"prompt": "a", "echo": True}}, "echo"),
        ({"stream": "yes"}, "stream"),
    ],
)
async def test_a_wrong_state_or_chunk_is_refused_with_its_field(http, body, field):
    body = {"stream": True, "generate_chunk": chunk_of([104])} | body

    error = (await told(http, "/v1/completions/derender", body, status=400))["error"]

    assert error["param"] is not None
    assert error["param"].startswith(field)


async def test_more_choices_than_n_may_be_are_refused(serve_frontend):
    async with serve_frontend(max_n=2) as running:
        choices = [{"index": index, "output_token_ids": [104], "output_chunk_lens": [1]} for index in range(2)]
        body = {"stream": True, "generate_chunk": chunk_of([104], 2), "stream_state": state_of(choices=choices)}
        error = (await told(running.http, "/v1/completions/derender", body, status=400))["error"]

    assert error["param"] == "generate_chunk"


async def test_a_reasoning_model_needs_its_prompt_with_each_chunk(http):
    body = {"stream": True, "generate_chunk": chunk_of([104])}

    error = (await told(http, "/v1/chat/completions/derender", body, status=400))["error"]

    assert error["param"] == "chat_request"


async def test_a_chunk_ends_at_its_deadline(serve_frontend, tokenizer):
    """Also if the tokenizer may take longer to decode it."""
    async with serve_frontend(recovery_timeout_s=3) as running:
        tokenizer.hung.clear()
        body = {"stream": True, "generate_chunk": chunk_of([104])}
        answer = await running.http.post("/v1/completions/derender", json=body, headers={"X-Request-Timeout": "0.05"})
        tokenizer.hung.set()

    assert answer.status_code == 504
