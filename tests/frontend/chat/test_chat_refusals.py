"""Invalid chat completions: each is refused with its reason."""

import pytest

from tests.frontend.chat.asking import MESSAGES, NAMED, TOOLS

DEEP: dict = {"type": "object"}
for _ in range(40):
    DEEP = {"type": "object", "properties": {"a": DEEP}}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"tool_choice": "required", "structured_outputs": {"json_object": True}}, "cannot be combined"),
        ({"tool_choice": NAMED, "structured_outputs": {"regex": "a"}}, "cannot be combined"),
        ({"tool_choice": {"type": "function", "function": {"name": "mul"}}}, "does not match any of the specified `tools`"),
        ({"tool_choice": "sometimes"}, "must be"),
        ({"tool_choice": {"type": "function"}}, "must be"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools.0.function.name"),
        ({"tools": None, "tool_choice": "required"}, "When using `tool_choice`, `tools` must be set."),
        ({"tools": [], "tool_choice": "required"}, "When using `tool_choice`, `tools` must be set."),
        ({"functions": [{"name": "f"}]}, "use `tools`"),
        ({"modalities": ["text", "audio"]}, "modalities must be ['text']"),
        ({"audio": {"voice": "x"}}, "audio is not supported"),
        ({"web_search_options": {}}, "web_search_options is not supported"),
        ({"media_io_kwargs": {"image": {"image_mode": "L"}}}, "fake is not a multimodal model"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"top_logprobs": 2}, "when using `top_logprobs`, `logprobs` must be set to true."),
        ({"stream_options": {"include_usage": True}}, "Stream options can only be defined when `stream=True`."),
        ({"stream": True, "prompt_logprobs": 1}, "`prompt_logprobs` are not available when `stream=True`."),
        ({"continue_final_message": True, "add_generation_prompt": True}, "Cannot set both"),
    ],
)
async def test_what_cannot_be_is_refused(http, body, text):
    response = await http.post("/v1/chat/completions", json={"messages": MESSAGES, "tools": TOOLS, **body})

    assert response.status_code == 400, response.text
    assert text in response.json()["error"]["message"]


async def test_an_empty_list_of_tools_may_have_the_choice_auto(http):
    response = await http.post("/v1/chat/completions", json={"messages": MESSAGES, "tools": [], "tool_choice": "auto"})

    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"]


async def test_strict_tools_that_the_format_cannot_hold_are_refused(serve_frontend):
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    async with serve_frontend(tool_call_parser="pythonic") as frontend:
        response = await frontend.http.post("/v1/chat/completions", json={"messages": MESSAGES, "tools": strict})

    assert response.status_code == 400
    assert "strict" in response.json()["error"]["message"]


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"type": "array"}, "The parameters of tool 'add' must have \"type\": \"object\", not 'array'."),
        (DEEP, "The parameters of the tools are nested too deeply: the schema of forced calls may have 64 levels."),
    ],
    ids=["no object", "too deep"],
)
async def test_parameters_that_no_forced_call_can_have_are_an_error_of_the_tools(http, choice, parameters, text):
    tool = {"type": "function", "function": {"name": "add", "parameters": parameters}}

    response = await http.post("/v1/chat/completions", json={"messages": MESSAGES, "tools": [tool], "tool_choice": choice})

    assert response.status_code == 400
    assert (response.json()["error"]["message"], response.json()["error"]["param"]) == (text, "tools")
