"""Chat completions over HTTP: parsing of outputs into messages; streams add up to the whole answer, in every chunking."""

import json

import pytest

from tests.frontend.chat.asking import HERMES, MESSAGES, NAMED, TOOLS, added_up, ask, stream
from tests.frontend.fakes import EOS
from tests.frontend.turns import writes

HERMES_2 = '<tool_call>\n{"name": "sub", "arguments": {"a": 2}}\n</tool_call>'
HARMONY = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>"
HARMONY_CALL = HARMONY + 'commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'

# reasoning parser, tool parser, further fields of the body, text of the model, reasoning, content, calls
CASES = {
    "plain": ("none", "none", {}, "Hello é 漢字 😀 שלום", None, "Hello é 漢字 😀 שלום", []),
    "reasoning": ("qwen3", "none", {}, "<think>\na 😀\n</think>\n\nyes", "a 😀", "yes", []),
    "reasoning cut off": ("qwen3", "none", {}, "<think>\nand so", "and so", None, []),
    "no reasoning": ("qwen3", "none", {}, "<thing>", None, "<thing>", []),
    "always reasoning": ("deepseek_r1", "none", {}, "a</think>b", "a", "b", []),
    "hidden reasoning": ("qwen3", "none", {"include_reasoning": False}, "<think>a</think>b", None, "b", []),
    "reasoning about calls without tools": (
        "qwen3",
        "hermes",
        {},
        "<think>They mean <tool_call> here.</think>yes",
        "They mean <tool_call> here.",
        "yes",
        [],
    ),
    "call": ("none", "hermes", {"tools": TOOLS}, HERMES, None, None, [("add", {"a": 1})]),
    "calls and text": (
        "none",
        "hermes",
        {"tools": TOOLS},
        "Let's see.\n" + HERMES + "\n" + HERMES_2,
        None,
        "Let's see.\n",
        [("add", {"a": 1}), ("sub", {"a": 2})],
    ),
    "one call only": (
        "none",
        "hermes",
        {"tools": TOOLS, "parallel_tool_calls": False},
        HERMES + "\n" + HERMES_2,
        None,
        None,
        [("add", {"a": 1})],
    ),
    "calls unasked for": ("none", "hermes", {}, HERMES, None, HERMES, []),
    "calls not wanted": ("none", "hermes", {"tools": TOOLS, "tool_choice": "none"}, HERMES, None, HERMES, []),
    "reasoning and call": (
        "qwen3",
        "hermes",
        {"tools": TOOLS},
        "<think>I call add</think>\n\n" + HERMES,
        "I call add",
        None,
        [("add", {"a": 1})],
    ),
    "harmony": ("gpt_oss", "openai", {}, HARMONY + "final<|message|>yes", "hm", "yes", []),
    "harmony call": ("gpt_oss", "openai", {"tools": TOOLS}, HARMONY_CALL, "hm", None, [("add", {"a": 1})]),
    "harmony call unasked for": ("gpt_oss", "openai", {}, HARMONY_CALL, "hm", '{"a": 1}', []),
    "harmony call not wanted": (
        "gpt_oss",
        "openai",
        {"tools": TOOLS, "tool_choice": "none"},
        HARMONY_CALL + "<|start|>assistant<|channel|>final<|message|>yes",
        "hm",
        '{"a": 1}\nyes',
        [],
    ),
    "required": (
        "none",
        "hermes",
        {"tools": TOOLS, "tool_choice": "required"},
        '[{"name": "add", "parameters": {"a": 1}}, {"name": "sub", "parameters": {"a": 2}}]',
        None,
        None,
        [("add", {"a": 1}), ("sub", {"a": 2})],
    ),
    "harmony required": (
        "gpt_oss",
        "openai",
        {"tools": TOOLS, "tool_choice": "required"},
        HARMONY + 'final<|message|>[{"name": "add", "parameters": {"a": 1}}]',
        "hm",
        None,
        [("add", {"a": 1})],
    ),
    "harmony required behind words and a call of its own": (
        "gpt_oss",
        "openai",
        {"tools": TOOLS, "tool_choice": "required"},
        HARMONY
        + "commentary<|message|>I add.<|end|><|start|>assistant<|channel|>commentary to=functions.sub"
        + ' <|constrain|>json<|message|>{"a": "no"}<|end|><|start|>assistant<|channel|>final<|message|>'
        + '[{"name": "add", "parameters": {"a": 1}}]',
        "hm",
        "I add.",
        [("add", {"a": 1})],
    ),
    "harmony named, not wrapped": (
        "gpt_oss",
        "openai",
        {"tools": TOOLS, "tool_choice": NAMED},
        '{"a": 1}',
        None,
        None,
        [("add", {"a": 1})],
    ),
    "harmony required, without reasoning": (
        "none",
        "openai",
        {"tools": TOOLS, "tool_choice": "required"},
        '[{"name": "add", "parameters": {"a": 1}}]',
        None,
        None,
        [("add", {"a": 1})],
    ),
    "required, reasoning about calls": (
        "qwen3",
        "hermes",
        {"tools": TOOLS, "tool_choice": "required"},
        "<think>" + HERMES_2 + '</think>[{"name": "add", "parameters": {"a": 1}}]',
        HERMES_2,
        None,
        [("add", {"a": 1})],
    ),
    "required, without reasoning": (
        "qwen3",
        "hermes",
        {"tools": TOOLS, "tool_choice": "required"},
        '[{"name": "add", "parameters": {"a": 1}}]',
        None,
        None,
        [("add", {"a": 1})],
    ),
    "named": ("none", "none", {"tools": TOOLS, "tool_choice": NAMED}, '{"a": 1}', None, None, [("add", {"a": 1})]),
    "named behind reasoning": (
        "qwen3",
        "none",
        {"tools": TOOLS, "tool_choice": NAMED},
        '<think>é</think>{"a": 1}',
        "é",
        None,
        [("add", {"a": 1})],
    ),
}


@pytest.mark.parametrize("steps", [(1, 5, 1000), pytest.param((2, 16), marks=pytest.mark.exhaustive)], ids=["few", "more"])
@pytest.mark.parametrize("case", CASES)
async def test_streams_add_up_to_the_whole_answer(serve_frontend, engine, case, steps):
    """Whatever the number of tokens of each step; the whole answer is generated in few steps."""
    reasoning_parser, tool_parser, fields, text, reasoning, content, calls = CASES[case]
    fields = {**fields, "max_tokens": 400, "logprobs": True, "return_token_ids": True}
    engine.tokens_per_step = 16
    async with serve_frontend(reasoning_parser=reasoning_parser, tool_call_parser=tool_parser) as frontend:
        writes(engine, text)
        whole = await ask(frontend, **fields)
        choice = whole["choices"][0]
        message = choice["message"]

        assert message["content"] == content
        assert message.get("reasoning") == message.get("reasoning_content") == reasoning
        found = message.get("tool_calls", [])
        assert [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in found] == calls
        assert all(call["type"] == "function" and call["id"] for call in found)
        is_named = isinstance(fields.get("tool_choice"), dict)
        assert choice["finish_reason"] == ("tool_calls" if calls and not is_named else "stop")

        for tokens_per_step in steps:
            engine.tokens_per_step = tokens_per_step
            chunks = await stream(frontend, **fields)
            streamed, reason, logprobs, ids = added_up(chunks)

            assert (streamed["content"], streamed["reasoning"]) == (content, reasoning)
            assert [(call["name"], call["arguments"]) for call in streamed["calls"]] == [
                (call["function"]["name"], call["function"]["arguments"]) for call in found
            ]
            assert reason == choice["finish_reason"]
            assert logprobs == choice["logprobs"]["content"]
            assert ids == choice["token_ids"] == [*text.encode(), EOS]
            assert chunks[-1]["usage"] == whole["usage"]
            assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]


@pytest.mark.parametrize("tokens_per_step", [1, 4, 1000])
async def test_reasoning_tokens_are_counted(serve_frontend, engine, tokens_per_step):
    engine.tokens_per_step = tokens_per_step
    async with serve_frontend(reasoning_parser="qwen3") as frontend:
        for text, num_reasoning in (("<think>abc</think>yes", 18), ("<think>abc", 11), ("yes", 0), ("<think>ab", 10)):
            writes(engine, text)

            [*_, last] = await stream(frontend)
            whole = await ask(frontend)

            assert last["usage"] == whole["usage"]
            assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": num_reasoning}


@pytest.mark.parametrize(
    ("choice", "text"),
    [("auto", '[TOOL_CALLS]add[ARGS]{"a": 1}'), ("required", '[{"name": "add", "parameters": {"a": 1}}]'), (NAMED, '{"a": 1}')],
    ids=["auto", "required", "named"],
)
async def test_calls_have_ids_that_the_models_template_accepts(serve_frontend, engine, choice, text):
    """Mistral's templates refuse ids that are not nine letters or digits, and the client sends the id back."""
    async with serve_frontend(tool_call_parser="mistral") as frontend:
        writes(engine, text)

        whole = await ask(frontend, tools=TOOLS, tool_choice=choice, max_tokens=100)

    [call] = whole["choices"][0]["message"]["tool_calls"]
    assert len(call["id"]) == 9 and call["id"].isalnum()


async def test_forced_calls_of_kimi_are_numbered_through_the_conversation(serve_frontend, engine):
    """Its template writes the id of a call in the place of the name, as `functions.NAME:NUMBER`."""
    calls = [{"id": "functions.sub:0", "type": "function", "function": {"name": "sub", "arguments": "{}"}}]
    messages = [*MESSAGES, {"role": "assistant", "tool_calls": calls}, *MESSAGES]
    async with serve_frontend(tool_call_parser="kimi_k2") as frontend:
        writes(engine, '[{"name": "add", "parameters": {"a": 1}}, {"name": "sub", "parameters": {"a": 2}}]')

        whole = await ask(frontend, messages=messages, tools=TOOLS, tool_choice="required", max_tokens=200)

    found = whole["choices"][0]["message"]["tool_calls"]
    assert [call["id"] for call in found] == ["functions.add:1", "functions.sub:2"]


async def test_every_choice_has_a_turn_of_its_own(serve_frontend, engine):
    async with serve_frontend(reasoning_parser="qwen3", tool_call_parser="hermes") as frontend:
        writes(engine, "<think>a</think>" + HERMES)

        whole = await ask(frontend, tools=TOOLS, n=3)
        chunks = await stream(frontend, tools=TOOLS, n=3)

    calls = [choice["message"]["tool_calls"] for choice in whole["choices"]]
    assert [len(each) for each in calls] == [1, 1, 1]
    assert len({each[0]["id"] for each in calls}) == 3
    for index in range(3):
        message, reason, _, _ = added_up(chunks, index)
        assert (message["reasoning"], len(message["calls"]), reason) == ("a", 1, "tool_calls")


async def test_a_turn_cut_off_in_a_call_has_what_came_and_says_so(serve_frontend, engine):
    async with serve_frontend(tool_call_parser="hermes") as frontend:
        writes(engine, HERMES)

        choice = (await ask(frontend, tools=TOOLS, max_tokens=len(HERMES) - 20))["choices"][0]

    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "add"


@pytest.mark.parametrize(
    ("stop", "calls", "reason"),
    [("</tool_call>", HERMES, "tool_calls"), ("1}", HERMES, "stop"), ("2}", f"{HERMES}\n{HERMES_2}", "stop")],
    ids=["behind the call", "in the call", "in the second call"],
)
async def test_a_turn_ends_with_tool_calls_unless_a_stop_string_cuts_a_call_off(serve_frontend, engine, stop, calls, reason):
    async with serve_frontend(tool_call_parser="hermes") as frontend:
        writes(engine, calls)

        choice = (await ask(frontend, tools=TOOLS, stop=stop))["choices"][0]
        _, streamed, _, _ = added_up(await stream(frontend, tools=TOOLS, stop=stop))

    assert (choice["finish_reason"], choice["stop_reason"]) == (reason, stop)
    assert streamed == reason
    assert choice["message"]["tool_calls"][-1]["function"]["name"] == ("sub" if stop == "2}" else "add")


async def test_held_back_text_still_has_its_log_probabilities_once(serve_frontend, engine):
    async with serve_frontend(reasoning_parser="qwen3") as frontend:
        writes(engine, "<think>a</think>b")

        chunks = await stream(frontend, logprobs=True)

    with_logprobs = [choice for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    assert "".join(each["token"] for choice in with_logprobs for each in choice["logprobs"]["content"]) == "<think>a</think>b"
    assert any(choice["delta"] == {} for choice in with_logprobs)
