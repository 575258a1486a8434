"""Templates without tools or developer messages: these are rendered as text; other templates stay unchanged."""

import dataclasses
import json

import pytest

from tetrad.tokenizer_svc.chat.renderer import Conversation
from tetrad.tokenizer_svc.chat.template_process import answer

PLAIN = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
WITH_TOOLS = "{{ tools | tojson }}" + PLAIN + "{{ messages[-1].tool_calls is defined }}"
LATE_TOOLS = "{% if not tools is defined %}{% set tools = none %}{% endif %}{% if tools %}yes{% endif %}" + PLAIN
USER = {"role": "user", "content": "What is 2+3?"}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": "é"}'}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
ASSISTANT = {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}
RESULTS = [{"role": "tool", "tool_call_id": "1", "content": "5"}, {"role": "tool", "tool_call_id": "2", "content": "6"}]
DEVELOPER = {"role": "developer", "content": "Be brief."}


def rendered(template, messages, tools=None):
    """Render in this process as the template process does."""
    conversation = Conversation(json.dumps(messages), tools_json=json.dumps(tools) if tools else "")
    fields = dataclasses.asdict(conversation)
    its = {"templates": {"default": template}, "special_tokens": {}, "media_texts": {}}
    reply = answer({**fields, **its, "max_chars": 10_000})
    assert "prompt" in reply, reply
    return reply["prompt"]


class TestTools:
    def test_are_described_in_a_system_message(self):
        prompt = rendered(PLAIN, [USER], [TOOL])

        assert prompt.startswith("[system]# Tools")
        assert json.dumps(TOOL) in prompt
        assert '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>' in prompt
        assert prompt.endswith("[user]What is 2+3?")

    @pytest.mark.parametrize("content", ["Be brief.", [{"type": "text", "text": "Be brief."}]])
    def test_are_described_behind_what_the_system_says(self, content):
        prompt = rendered(PLAIN, [{"role": "system", "content": content}, USER], [TOOL])

        assert prompt.startswith("[system]Be brief.\n")
        assert prompt.count("[system]") == 1
        assert "# Tools" in prompt

    @pytest.mark.parametrize("template", [WITH_TOOLS, LATE_TOOLS])
    def test_are_the_templates_own_business_if_it_knows_them(self, template):
        assert "# Tools" not in rendered(template, [USER], [TOOL])

    @pytest.mark.parametrize(
        ("sign", "call"),
        [
            ("", "<｜tool▁call▁begin｜>FUNCTION_NAME<｜tool▁sep｜>{ARGUMENTS_AS_JSON_OBJECT}<｜tool▁call▁end｜>"),
            ("```", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>FUNCTION_NAME\n```json\n"),
        ],
    )
    def test_are_described_in_the_way_in_which_the_template_writes_calls(self, sign, call):
        template = "{# <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>" + sign + " #}" + PLAIN

        prompt = rendered(template, [USER], [TOOL])

        assert call in prompt
        assert "<tool_call>" not in prompt

    def test_are_not_described_without_any(self):
        assert rendered(PLAIN, [USER]) == "[user]What is 2+3?"


class TestCallsAndResults:
    def test_are_written_as_text(self):
        written = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": "é"}}\n</tool_call>'

        prompt = rendered(PLAIN, [USER, ASSISTANT, *RESULTS])

        assert prompt == (
            f"[user]What is 2+3?[assistant]{written}\n{written}"
            "[user]<tool_response>\n5\n</tool_response>\n<tool_response>\n6\n</tool_response>"
        )

    def test_what_was_said_before_a_call_stays(self):
        prompt = rendered(PLAIN, [USER, {**ASSISTANT, "content": "Let me see."}])

        assert "[assistant]Let me see.\n<tool_call>" in prompt

    def test_what_the_user_says_behind_a_result_is_a_turn_of_its_own(self):
        prompt = rendered(PLAIN, [USER, ASSISTANT, RESULTS[0], USER])

        assert prompt.endswith("</tool_response>[user]What is 2+3?")

    def test_reach_a_template_that_knows_tools_as_they_are(self):
        assert rendered(WITH_TOOLS, [USER, ASSISTANT]).endswith("True")


class TestArguments:
    JOINED = "{% for message in messages %}{% for call in message.tool_calls %}{{ '>' + call['function']['arguments'] }}"
    PLAIN = "{% for message in messages %}{% for call in message.tool_calls %}{{ call.function.arguments }}"
    GUARDED = (
        "{% for message in messages %}{% for call in message.tool_calls %}{% if call.function.arguments is string %}"
        "{{ call.function.arguments }}{% else %}{{ call.function.arguments.b }}{% endif %}"
    )
    AS_JSON = "{% for message in messages %}{% for call in message.tool_calls %}{{ '>' + call.function.arguments | tojson }}"

    @pytest.mark.parametrize(
        ("template", "written"),
        [(JOINED, '>{"a": 2, "b": "é"}'), (PLAIN, '{"a": 2, "b": "é"}'), (GUARDED, "é"), (AS_JSON, '>{"a": 2, "b": "é"}')],
    )
    def test_are_text_to_templates_that_write_them_as_they_are_and_objects_to_others(self, template, written):
        assert rendered(template + "{% endfor %}{% endfor %}", [ASSISTANT]) == written * 2


class TestReasoning:
    OPENED = "{% for message in messages %}{% if message.role == 'assistant' %}"
    OLDER = OPENED + "{{ message.reasoning_content }}{{ message.reasoning is defined }}"
    NEWER = OPENED + "{{ message.reasoning }}"
    ANY = OPENED + "{{ message.get('reasoning') or message.get('reasoning_content') }}"
    HARMONY = OPENED + (
        "{% if message.content and message.thinking %}{{ raise_exception('not both') }}{% endif %}"
        "{{ message.content or message['thinking'] }}{{ '!' if message.tool_calls }}"
    )

    @pytest.mark.parametrize(
        ("template", "fields", "written"),
        [
            (OLDER, {}, "hm.False"),
            (NEWER, {}, "hm."),
            (NEWER, {"tool_calls": [CALL], "content": "I add."}, "hm."),
            (ANY, {}, "hm."),
            (HARMONY, {"tool_calls": [CALL]}, "hm.!"),
            (HARMONY, {"tool_calls": [CALL], "content": "I add."}, "I add.!"),
            (HARMONY, {"thinking": "oh."}, "oh."),
        ],
    )
    def test_is_in_the_field_that_the_template_reads(self, template, fields, written):
        message = {"role": "assistant", "content": "", "reasoning_content": "hm.", **fields}

        assert rendered(template + "{% endif %}{% endfor %}", [USER, message]) == written


class TestDevelopers:
    def test_are_system_to_a_template_that_does_not_know_them(self):
        assert rendered(PLAIN, [DEVELOPER, USER]) == "[system]Be brief.[user]What is 2+3?"

    def test_speak_with_the_system_in_one_message(self):
        system = {"role": "system", "content": "Be kind."}

        assert rendered(PLAIN, [system, DEVELOPER, USER]).startswith("[system]Be kind.\n\nBe brief.[user]")

    def test_are_themselves_to_a_template_that_knows_them(self):
        template = "{# developer #}" + PLAIN

        assert rendered(template, [DEVELOPER, USER]).startswith("[developer]Be brief.")
