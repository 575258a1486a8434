"""Messages: every form of OpenAI's clients is converted for chat templates, or refused with its position."""

import pytest

from tetrad.frontend.llm.chat_messages import plain_messages
from tetrad.frontend.parsing.formats import MarkIds, choose_chat_formats
from tetrad.services.errors import InvalidRequest

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        (USER, USER),
        ({"role": "user", "content": "hi", "name": "Ann"}, {"role": "user", "content": "hi", "name": "Ann"}),
        ({"role": "developer", "content": "be"}, {"role": "developer", "content": "be"}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "a\nb"},
        ),
        ({"role": "user", "content": []}, {"role": "user", "content": ""}),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": "no"},
        ),
        ({"role": "assistant", "content": None, "refusal": "no"}, {"role": "assistant", "content": "no"}),
        (
            {"role": "assistant", "content": None, "audio": None, "function_call": None, "tool_calls": [CALL]},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
        ),
        ({"role": "assistant", "content": "a", "tool_calls": []}, {"role": "assistant", "content": "a"}),
        (
            {"role": "assistant", "content": "a", "reasoning": "r"},
            {"role": "assistant", "content": "a", "reasoning_content": "r"},
        ),
        ({"role": "tool", "tool_call_id": "1", "content": "5"}, {"role": "tool", "tool_call_id": "1", "content": "5"}),
        (
            {"role": "function", "name": "f", "content": "5"},
            {"role": "tool", "name": "f", "tool_call_id": "f", "content": "5"},
        ),
    ],
)
def test_forms_of_a_message(message, plain):
    assert plain_messages([message]) == [plain]


@pytest.mark.parametrize("template", ["{% if message.role == 'observation' %}", '{% if "observation" == message["role"] %}'])
def test_a_template_may_have_roles_of_its_own(template):
    message = {"role": "observation", "content": [{"type": "text", "text": "5"}]}

    assert plain_messages([message], template=template) == [{"role": "observation", "content": "5"}]
    with pytest.raises(InvalidRequest, match="unknown role 'observe'"):
        plain_messages([{"role": "observe", "content": "5"}], template=template)
    with pytest.raises(InvalidRequest, match="unknown role ''"):
        plain_messages([{"role": "", "content": "5"}], template=template + "{{ '' }}")


@pytest.mark.parametrize(
    ("message", "field", "text"),
    [
        ({"content": "hi"}, "messages[1].role", "needs a role"),
        ({"role": "narrator", "content": "hi"}, "messages[1].role", "unknown role 'narrator'"),
        ({"role": "user", "content": 5}, "messages[1].content", "must be a string or a list of parts, got int"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[1].content",
            "Unsupported chat content part type: 'image_url'",
        ),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[1].content", "'input_audio'"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content", "'text'"),
        ({"role": "user", "content": [7]}, "messages[1].content", "'int'"),
        ({"role": "user", "content": "a\ud800"}, "messages[1].content", "lone surrogate at character 1"),
        ({"role": "user", "content": "a", "name": "\udc00"}, "messages[1].name", "lone surrogate"),
        ({"role": "assistant", "tool_calls": {}}, "messages[1].tool_calls", "must be a list"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "messages[1].tool_calls[0]", "{id, type, function"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
            "messages[1].tool_calls[0].function.arguments",
            "must be a JSON object or its text, got list",
        ),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages[1].function_call", "use tool_calls"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(message, field, text):
    with pytest.raises(InvalidRequest) as refused:
        plain_messages([USER, message])

    assert refused.value.field == field
    assert text in refused.value.message


@pytest.mark.parametrize("arguments", ['{"a": "cut o', "{'a': 1}", "[1]", '"a"', "[" * 100_000])
def test_a_call_whose_arguments_are_no_object_stays_without_them(arguments):
    """A model wrote them, and the client sends them back with every later turn."""
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}

    [plain] = plain_messages([{"role": "assistant", "tool_calls": [call]}])

    assert plain["tool_calls"] == [{**CALL, "function": {"name": "f", "arguments": "{}"}}]
    assert call["function"]["arguments"] == arguments


def test_a_conversation_has_messages():
    with pytest.raises(InvalidRequest, match="messages cannot be empty"):
        plain_messages([])


class TestFormats:
    @staticmethod
    async def encode(texts):
        return [list(text.encode()) for text in texts]

    @pytest.mark.parametrize(
        ("tool_parser", "reasoning_parser", "template", "tools", "reasoning"),
        [
            ("auto", "auto", "", "hermes", None),
            ("auto", "auto", "<|im_start|>{{ tools }}<tool_call></think>", "hermes", "qwen3"),
            ("auto", "auto", "<|start|><|channel|>analysis<|message|>", "openai", "gpt_oss"),
            ("none", "none", "<|im_start|>{{ tools }}<tool_call></think>", None, None),
            ("mistral", "granite", "", "mistral", "granite"),
        ],
    )
    async def test_are_chosen_by_name_or_template(self, tool_parser, reasoning_parser, template, tools, reasoning):
        formats = await choose_chat_formats(tool_parser, reasoning_parser, template, self.encode)

        assert (formats.tools and formats.tools.name) == tools
        assert (formats.reasoning and formats.reasoning.name) == reasoning

    async def test_know_the_ids_of_the_reasoning_and_of_what_comes_before_an_answer(self):
        think = await choose_chat_formats("auto", "qwen3", "", self.encode)
        harmony = await choose_chat_formats("auto", "gpt_oss", "", self.encode)

        assert think.thinking == think.preamble == MarkIds(tuple(b"<think>"), tuple(b"</think>"))
        assert harmony.thinking == MarkIds(tuple(b"<|channel|>analysis<|message|>"), tuple(b"<|end|>"))
        assert harmony.preamble == MarkIds(tuple(b"<|channel|>"), tuple(b"<|channel|>final<|message|>"))

    @pytest.mark.parametrize("names", [("gpt", "auto"), ("auto", "r2")])
    async def test_unknown_names_are_refused(self, names):
        with pytest.raises(InvalidRequest, match="There is no parser"):
            await choose_chat_formats(*names, "", self.encode)
