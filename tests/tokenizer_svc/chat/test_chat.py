"""Chat templates: equal to transformers' rendering; a faulty template fails its own request alone."""

import copy
import dataclasses
import json
from typing import Any

import pytest

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.chat.renderer import ChatLimits, ChatRenderer, Conversation
from tetrad.tokenizer_svc.chat.template_process import answer
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer

USER = {"role": "user", "content": "Hi, 你好 😀"}
ASSISTANT = {"role": "assistant", "content": "Hello there"}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"type": "function", "function": {"name": "f", "description": "<a&b>", "parameters": {"type": "object"}}}

WITH_TOOLS = """
{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}
{%- for message in messages %}
  {%- if message.role not in ['user', 'assistant', 'system'] %}{{ raise_exception('No role ' + message.role) }}{% endif %}
  {%- if loop.index0 > 3 %}{% break %}{% endif %}
[{{ message.role }}]{% generation %}{{ message.content | trim }}{% endgeneration %}
{%- endfor %}
{%- for document in documents or [] %}{{ document.title }}{% endfor %}
{{- eos_token }}{{ mood | default('calm') }}{% if add_generation_prompt %}[assistant]{% endif %}
"""
WITH_PARTS = """{% for message in messages %}{% for part in message['content'] %}<{{ part.text }}>{% endfor %}{% endfor %}"""


def rendered(template: str, messages: object, **fields: Any) -> dict[str, str]:
    """Render in this process as the template process does."""
    given = {"messages_json": json.dumps(messages), **fields}
    conversation = dataclasses.asdict(Conversation(**given))
    its = {"templates": {"default": template}, "special_tokens": {"eos_token": "</s>"}, "media_texts": {}}
    return answer({**conversation, **its, "max_chars": 10_000})


class TestEqualToTransformers:
    @pytest.mark.parametrize("messages", [[USER], [SYSTEM, USER], [USER, ASSISTANT, USER], [SYSTEM, USER, ASSISTANT]])
    @pytest.mark.parametrize("template", [None, WITH_TOOLS])
    @pytest.mark.parametrize("add_generation_prompt", [True, False])
    def test_conversations(
        self, tokenizer: Tokenizer, reference: Any, messages: list[Any], template: str | None, add_generation_prompt: bool
    ) -> None:
        source = template or tokenizer.facts.chat_templates["default"]
        expected = reference.apply_chat_template(
            messages, chat_template=source, add_generation_prompt=add_generation_prompt, tokenize=False, eos_token="</s>"
        )

        assert rendered(source, messages, add_generation_prompt=add_generation_prompt) == {"prompt": expected}

    def test_tools_documents_and_kwargs(self, reference: Any) -> None:
        documents = [{"title": "One", "text": "1"}]
        expected = reference.apply_chat_template(
            [USER], tools=[TOOL], documents=documents, chat_template=WITH_TOOLS, mood="glad", tokenize=False, eos_token="</s>"
        )

        reply = rendered(
            WITH_TOOLS,
            [USER],
            tools_json=json.dumps([TOOL]),
            documents_json=json.dumps(documents),
            chat_template_kwargs_json='{"mood": "glad"}',
            add_generation_prompt=False,
        )

        assert reply == {"prompt": expected}
        assert "<a&b>" in expected

    @pytest.mark.parametrize("content", ["Once upon", "Once upon ", "Hello\n"])
    @pytest.mark.parametrize("template", [None, WITH_TOOLS])
    def test_continued_final_message(self, tokenizer: Tokenizer, reference: Any, content: str, template: str | None) -> None:
        messages = [USER, {"role": "assistant", "content": content}]
        expected = reference.apply_chat_template(
            copy.deepcopy(messages), chat_template=template, continue_final_message=True, tokenize=False
        )

        source = template or tokenizer.facts.chat_templates["default"]
        reply = rendered(source, messages, add_generation_prompt=False, continue_final_message=True)

        assert reply == {"prompt": expected}


class TestMessages:
    def test_parts_become_one_text_for_templates_that_know_no_parts(self, tokenizer: Tokenizer) -> None:
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]

        reply = rendered(tokenizer.facts.chat_templates["default"], [{"role": "user", "content": parts}])

        assert "<|im_start|>user\none\ntwo<|im_end|>" in reply["prompt"]

    def test_parts_stay_parts_for_templates_that_read_them(self) -> None:
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]

        assert rendered(WITH_PARTS, [{"role": "user", "content": parts}]) == {"prompt": "<one><two>"}

    def test_a_text_becomes_a_part_for_templates_that_read_only_parts(self) -> None:
        messages = [{"role": "user", "content": "one"}, {"role": "assistant", "content": None, "tool_calls": []}]

        assert rendered(WITH_PARTS, messages) == {"prompt": "<one>"}

    @pytest.mark.parametrize(
        "text",
        [
            "{% if m.content is string %}{{ m.content }}{% else %}",
            "{% if m.role == 'user' %}{{ m['content'] | trim }}{% else %}",
        ],
    )
    def test_a_text_stays_a_text_for_templates_that_read_both(self, text: str) -> None:
        template = (
            "{% for m in messages %}" + text + "{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endif %}{% endfor %}"
        )

        assert rendered(template, [{"role": "user", "content": "one"}]) == {"prompt": "one"}

    def test_arguments_of_tool_calls_are_objects(self) -> None:
        calls = [{"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]
        template = "{{ messages[0].tool_calls[0].function.arguments.x }}{{ messages[0].content }}"

        assert rendered(template, [{"role": "assistant", "content": None, "tool_calls": calls}]) == {"prompt": "1"}

    @pytest.mark.parametrize(
        ("messages", "reason"),
        [
            ([], "no messages"),
            ({}, "JSON object, not an array"),
            (["hi"], "item 0 is a JSON string"),
            ([{"content": "x"}], "message 0 has no role"),
            ([USER, {"role": 7, "content": "x"}], "message 1 has no role"),
            ([{"role": "user", "content": 7}], "content of message 0 is a JSON number"),
            ([{"role": "user", "content": [7]}], "content of message 0"),
            ([{"role": "user", "content": [{"type": "image_url"}]}], "'image_url'"),
            ([{"role": "assistant", "tool_calls": "f()"}], "tool_calls of message 0"),
            ([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}], "not JSON"),
            ([{"role": "assistant", "tool_calls": [{"function": "f"}]}], "a function that is no object"),
        ],
    )
    def test_malformed_messages_are_named(self, messages: object, reason: str) -> None:
        reply = rendered("{{ messages[0].content }}", messages)

        assert reason in reply["error"]
        assert reply["field"] == "messages_json"

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"messages_json": "{"}, "messages_json"),
            ({"messages_json": "[" * 100_000}, "messages_json"),
            ({"tools_json": "{}"}, "tools_json"),
            ({"documents_json": "[1]"}, "documents_json"),
            ({"chat_template_kwargs_json": "[]"}, "chat_template_kwargs_json"),
            ({"chat_template_kwargs_json": '{"messages": []}'}, "chat_template_kwargs_json"),
        ],
    )
    def test_malformed_json_is_named_by_its_field(self, fields: dict[str, str], field: str) -> None:
        assert rendered("x", [USER], **fields)["field"] == field


class TestTemplateErrors:
    @pytest.mark.parametrize(
        ("template", "reason"),
        [
            ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
            ("{{ raise_exception(404) }}", "404"),
            ("{{ raise_exception(messages) }}", "'role': 'user'"),
            ("line\n{% if %}", "line 2"),
            ("{{ messages[0].nothing.more }}", "nothing"),
            ("{{ 1 / 0 }}", "ZeroDivisionError"),
            ("{{ 'x'.__class__.__mro__ }}", "unsafe"),
            ("{{ messages.append(1) }}", "unsafe"),
            ("{% for i in range(20000) %}x{% endfor %}", "10000 characters"),
            ("{% for i in range(10 ** 9) %}{% endfor %}", "Range"),
            ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
            ("{% include 'x' %}", "loader"),
        ],
    )
    def test_the_client_gets_the_templates_own_words(self, template: str, reason: str) -> None:
        reply = rendered(template, [USER])

        assert reason in reply["error"]
        assert reply["field"] == "chat_template"

    def test_a_template_that_drops_the_final_message_cannot_continue_it(self) -> None:
        reply = rendered("fixed", [USER], add_generation_prompt=False, continue_final_message=True)

        assert "continue_final_message" in reply["error"]


class TestRenderer:
    ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"

    async def test_the_models_template_or_the_clients(self, tokenizer: Tokenizer) -> None:
        renderer = ChatRenderer(tokenizer.facts, ChatLimits())
        try:
            own = await renderer.render(Conversation(json.dumps([USER])))
            foreign = await renderer.render(Conversation(json.dumps([USER]), chat_template="{{ eos_token }}"))
        finally:
            await renderer.close()

        assert own.endswith("<|im_start|>user\nHi, 你好 😀<|im_end|>\n<|im_start|>assistant\n")
        assert foreign == "<|im_end|>"

    async def test_an_endless_template_is_stopped_and_the_next_one_works(self, tokenizer: Tokenizer) -> None:
        renderer = ChatRenderer(tokenizer.facts, ChatLimits(timeout_s=0.3))
        try:
            with pytest.raises(InvalidRequest, match=r"longer than 0\.3 s"):
                await renderer.render(Conversation(json.dumps([USER]), chat_template=self.ENDLESS))
            assert await renderer.render(Conversation(json.dumps([USER]), chat_template="fine")) == "fine"
        finally:
            await renderer.close()

    @pytest.mark.parametrize("bomb", ["{{ 'x' * 10 ** 12 }}", "{{ 'x'.ljust(10 ** 11) }}", "{{ '%99999999999d' % 1 }}"])
    async def test_a_template_that_wants_all_memory_does_not_get_it(self, tokenizer: Tokenizer, bomb: str) -> None:
        renderer = ChatRenderer(tokenizer.facts, ChatLimits())
        try:
            with pytest.raises(InvalidRequest, match=r"memory|MemoryError|OverflowError|too"):
                await renderer.render(Conversation(json.dumps([USER]), chat_template=bomb))
            assert await renderer.render(Conversation(json.dumps([USER]), chat_template="fine")) == "fine"
        finally:
            await renderer.close()

    async def test_a_model_without_a_template_says_so(self, tokenizer: Tokenizer) -> None:
        renderer = ChatRenderer(dataclasses.replace(tokenizer.facts, chat_templates={}), ChatLimits())

        with pytest.raises(InvalidRequest, match=r"no chat template\. Use /v1/completions.*--chat-template FILE"):
            await renderer.render(Conversation(json.dumps([USER])))
        await renderer.close()

    async def test_tools_choose_the_template_for_tools(self, tokenizer: Tokenizer) -> None:
        templates = {"default": "plain", "tool_use": "tools"}
        renderer = ChatRenderer(dataclasses.replace(tokenizer.facts, chat_templates=templates), ChatLimits())
        try:
            plain = await renderer.render(Conversation(json.dumps([USER])))
            tools = await renderer.render(Conversation(json.dumps([USER]), tools_json=json.dumps([TOOL])))
        finally:
            await renderer.close()

        assert (plain, tools) == ("plain", "tools")
