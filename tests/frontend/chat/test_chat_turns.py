"""Chat completions over HTTP: what a model writes -> messages; streams that add up to the whole answer, in every chunking."""

import json

import pytest

from tests.frontend.fakes import EOS

MESSAGES = [{"role": "user", "content": "hi"}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("add", "sub")]
NAMED = {"type": "function", "function": {"name": "add"}}
HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
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


def writes(engine, text, tokens_per_step=1):
    """Make the fake engine answer every request with `text`."""
    data = text.encode()
    engine.reply = lambda _, position: data[position] if position < len(data) else EOS
    engine.tokens_per_step = tokens_per_step


async def ask(frontend, **body):
    response = await frontend.http.post("/v1/chat/completions", json={"messages": MESSAGES, **body})
    assert response.status_code == 200, response.text
    return response.json()


async def stream(frontend, **body):
    """Return the chunks of a stream."""
    body = {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}, **body}
    async with frontend.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def added_up(chunks, index=0):
    """Return (message, finish reason, logprobs, token ids) that the chunks of a choice add up to."""
    message = {"content": None, "reasoning": None, "calls": []}
    reasons, logprobs, ids = [], [], []
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    for choice in choices[1:]:
        delta = choice["delta"]
        assert "role" not in delta
        assert delta.get("reasoning") == delta.get("reasoning_content")
        for name in ("content", "reasoning"):
            if name in delta:
                message[name] = (message[name] or "") + delta[name]
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["type"] == "function"
                assert call["index"] == len(message["calls"])
                message["calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            message["calls"][call["index"]]["arguments"] += call["function"].get("arguments", "")
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
        logprobs += choice["logprobs"]["content"] if choice["logprobs"] else []
        ids += choice.get("token_ids", [])
    assert len(reasons) == 1
    return message, reasons[0], logprobs, ids


@pytest.mark.parametrize("case", CASES)
async def test_streams_add_up_to_the_whole_answer(serve_frontend, engine, case):
    reasoning_parser, tool_parser, fields, text, reasoning, content, calls = CASES[case]
    fields = {**fields, "max_tokens": 400, "logprobs": True, "return_token_ids": True}
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
        assert choice["finish_reason"] == ("tool_calls" if calls else "stop")

        for tokens_per_step in (1, 2, 5, 16, 1000):
            writes(engine, text, tokens_per_step)
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
    async with serve_frontend(reasoning_parser="qwen3") as frontend:
        for text, num_reasoning in (("<think>abc</think>yes", 18), ("<think>abc", 11), ("yes", 0), ("<think>ab", 10)):
            writes(engine, text, tokens_per_step)

            [*_, last] = await stream(frontend)
            whole = await ask(frontend)

            assert last["usage"] == whole["usage"]
            assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": num_reasoning}


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


async def test_held_back_text_still_has_its_log_probabilities_once(serve_frontend, engine):
    async with serve_frontend(reasoning_parser="qwen3") as frontend:
        writes(engine, "<think>a</think>b")

        chunks = await stream(frontend, logprobs=True)

    with_logprobs = [choice for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    assert "".join(each["token"] for choice in with_logprobs for each in choice["logprobs"]["content"]) == "<think>a</think>b"
    assert any(choice["delta"] == {} for choice in with_logprobs)


class TestForcedCalls:
    async def ask_engine(self, frontend, engine, text, **body):
        """Return the request that the engine saw."""
        writes(engine, text)
        await ask(frontend, tools=TOOLS, **body)
        return engine.requests[-1].sampling_params

    async def test_required_is_a_schema_of_the_calls(self, frontend, engine):
        params = await self.ask_engine(frontend, engine, "[]", tool_choice="required")

        schema = json.loads(params.structured_outputs.json_schema)
        assert (schema["type"], schema["minItems"]) == ("array", 1)
        assert "maxItems" not in schema

    async def test_required_without_parallel_calls_allows_one(self, frontend, engine):
        params = await self.ask_engine(frontend, engine, "[]", tool_choice="required", parallel_tool_calls=False)

        assert json.loads(params.structured_outputs.json_schema)["maxItems"] == 1

    async def test_named_is_the_schema_of_its_arguments(self, frontend, engine):
        params = await self.ask_engine(frontend, engine, "{}", tool_choice=NAMED)

        # Closed: arguments that the tool does not declare are not made up.
        assert json.loads(params.structured_outputs.json_schema) == {**PARAMETERS, "additionalProperties": False}

    @pytest.mark.parametrize(
        "more",
        [
            {"additionalProperties": {"type": "string"}},
            {"allOf": [{}]},
            {"minProperties": 2},
            {"required": ["a", "b"]},
            {"required": [{}]},
        ],
    )
    async def test_schemas_that_speak_of_further_arguments_stay_open(self, frontend, engine, more):
        writes(engine, "{}")
        tool = {"type": "function", "function": {"name": "add", "parameters": {**PARAMETERS, **more}}}

        await ask(frontend, tools=[tool], tool_choice=NAMED)

        seen = json.loads(engine.requests[-1].sampling_params.structured_outputs.json_schema)
        assert seen == {**PARAMETERS, **more}

    async def test_allowed_tools_hide_the_others(self, frontend, engine):
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
        params = await self.ask_engine(frontend, engine, "[]", tool_choice=allowed)

        schema = params.structured_outputs.json_schema
        assert '"add"' in schema
        assert '"sub"' not in schema

    async def test_the_constraint_waits_for_the_end_of_the_reasoning(self, serve_frontend, engine):
        async with serve_frontend(reasoning_parser="qwen3") as frontend:
            forced = await self.ask_engine(frontend, engine, "[]", tool_choice="required")
            own = await self.ask_engine(frontend, engine, "{}", response_format={"type": "json_object"})
            free = await self.ask_engine(frontend, engine, "yes")

        assert list(forced.structured_outputs.start_after_token_ids) == list(b"</think>")
        assert list(own.structured_outputs.start_after_token_ids) == list(b"</think>")
        assert list(forced.structured_outputs.opening_token_ids) == list(b"<think>")
        assert list(own.structured_outputs.opening_token_ids) == list(b"<think>")
        assert not free.HasField("structured_outputs")

    async def test_reasoning_that_is_open_from_the_start_needs_no_opening(self, serve_frontend, engine):
        async with serve_frontend(reasoning_parser="deepseek_r1") as frontend:
            params = await self.ask_engine(frontend, engine, "[]", tool_choice="required")

        assert list(params.structured_outputs.start_after_token_ids) == list(b"</think>")
        assert not params.structured_outputs.opening_token_ids

    async def test_the_constraint_holds_at_once_where_the_prompt_has_no_reasoning(self, serve_frontend, engine):
        async with serve_frontend(reasoning_parser="granite") as frontend:
            params = await self.ask_engine(frontend, engine, "[]", tool_choice="required")

        assert not params.structured_outputs.start_after_token_ids

    async def test_strict_tools_are_held_while_the_model_is_free_to_call(self, serve_frontend, engine):
        strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
        writes(engine, "yes")
        async with serve_frontend(tool_call_parser="hermes") as frontend:
            await ask(frontend, tools=strict)

        tag = engine.requests[-1].sampling_params.structured_outputs.structural_tag
        assert "<tool_call>" in tag
        assert '"integer"' in tag

    @pytest.mark.parametrize("strict", [True, False])
    async def test_tools_may_be_called_besides_an_answer_in_json(self, serve_frontend, engine, strict):
        tools = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": strict}}]
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "maxProperties": 0}}}
        writes(engine, HERMES)
        async with serve_frontend(tool_call_parser="hermes", reasoning_parser="qwen3") as frontend:
            whole = await ask(frontend, tools=tools, response_format=form)

        outputs = engine.requests[-1].sampling_params.structured_outputs
        answer, calls = json.loads(outputs.structural_tag)["format"]["elements"]
        assert answer["json_schema"] == form["json_schema"]["schema"]
        assert calls["tags"][0]["begin"].startswith("<tool_call>")
        assert calls["tags"][0]["content"]["json_schema"] == (PARAMETERS if strict else {"type": "object"})
        assert list(outputs.start_after_token_ids) == list(b"</think>")
        assert whole["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "add"

    async def test_an_answer_in_json_is_all_there_can_be_where_calls_begin_like_json(self, serve_frontend, engine):
        writes(engine, "{}")
        async with serve_frontend(tool_call_parser="llama3_json") as frontend:
            await ask(frontend, tools=TOOLS, response_format={"type": "json_object"})

        assert engine.requests[-1].sampling_params.structured_outputs.json_object

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "cannot be combined"),
            ({"tool_choice": NAMED, "structured_outputs": {"regex": "a"}}, "cannot be combined"),
            ({"tool_choice": {"type": "function", "function": {"name": "mul"}}}, "does not match any of the specified `tools`"),
            ({"tool_choice": "sometimes"}, "must be"),
            ({"tool_choice": {"type": "function"}}, "must be"),
            ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type"),
            ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools.0.function.name"),
            ({"tools": None, "tool_choice": "required"}, "When using `tool_choice`, `tools` must be set."),
            ({"functions": [{"name": "f"}]}, "use `tools`"),
            ({"modalities": ["text", "audio"]}, "modalities must be ['text']"),
            ({"audio": {"voice": "x"}}, "audio is not supported"),
            ({"web_search_options": {}}, "web_search_options is not supported"),
            ({"reasoning_effort": "much"}, "reasoning_effort"),
            ({"max_completion_tokens": 0}, "max_completion_tokens"),
            ({"top_logprobs": 2}, "when using `top_logprobs`, `logprobs` must be set to true."),
            ({"stream_options": {"include_usage": True}}, "Stream options can only be defined when `stream=True`."),
            ({"stream": True, "prompt_logprobs": 1}, "`prompt_logprobs` are not available when `stream=True`."),
            ({"continue_final_message": True, "add_generation_prompt": True}, "Cannot set both"),
        ],
    )
    async def test_what_cannot_be_is_refused(self, http, body, text):
        response = await http.post("/v1/chat/completions", json={"messages": MESSAGES, "tools": TOOLS, **body})

        assert response.status_code == 400, response.text
        assert text in response.json()["error"]["message"]

    async def test_strict_tools_that_the_format_cannot_hold_are_refused(self, serve_frontend):
        strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
        async with serve_frontend(tool_call_parser="pythonic") as frontend:
            response = await frontend.http.post("/v1/chat/completions", json={"messages": MESSAGES, "tools": strict})

        assert response.status_code == 400
        assert "strict" in response.json()["error"]["message"]


class TestRendering:
    async def test_reasoning_effort_reaches_the_template(self, http, tokenizer):
        body = {"messages": MESSAGES, "max_tokens": 1, "reasoning_effort": "low", "chat_template_kwargs": {"mood": "glad"}}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200

        assert json.loads(tokenizer.rendered[-1].chat_template_kwargs_json) == {"mood": "glad", "reasoning_effort": "low"}

    async def test_no_reasoning_effort_switches_thinking_off(self, http, tokenizer):
        body = {"messages": MESSAGES, "max_tokens": 1, "reasoning_effort": "none"}
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200

        kwargs = json.loads(tokenizer.rendered[-1].chat_template_kwargs_json)
        assert (kwargs["enable_thinking"], kwargs["thinking"]) == (False, False)

    async def test_tools_reach_the_template_unless_there_is_no_choice(self, http, tokenizer):
        for choice, seen in (("auto", True), ("none", False)):
            body = {"messages": MESSAGES, "max_tokens": 1, "tools": TOOLS, "tool_choice": choice}
            assert (await http.post("/v1/chat/completions", json=body)).status_code == 200

            assert bool(tokenizer.rendered[-1].tools_json) is seen


@pytest.mark.parametrize("content", ["Once", [{"type": "text", "text": "Once"}]])
async def test_echo_begins_with_the_message_that_is_continued(frontend, engine, content):
    writes(engine, " upon")
    body = {"messages": [*MESSAGES, {"role": "assistant", "content": content}], "continue_final_message": True, "echo": True}

    whole = await ask(frontend, **body)
    chunks = await stream(frontend, **body)

    assert whole["choices"][0]["message"]["content"] == added_up(chunks)[0]["content"] == "Once upon"
    assert whole["usage"]["completion_tokens"] == len(" upon") + 1


async def test_echo_of_what_others_said_is_nothing(frontend, engine):
    writes(engine, "yes")

    assert (await ask(frontend, echo=True))["choices"][0]["message"]["content"] == "yes"


async def test_special_tokens_are_kept_where_marks_are_made_of_them(serve_frontend, engine, tokenizer):
    writes(engine, "<|channel|>final<|message|>yes")
    async with serve_frontend(tool_call_parser="openai") as frontend:
        await ask(frontend)
    async with serve_frontend(tool_call_parser="mistral") as frontend:
        await ask(frontend)
        await ask(frontend, tools=TOOLS)

    assert [opened.skip_special_tokens for opened in tokenizer.opened] == [False, True, False]
