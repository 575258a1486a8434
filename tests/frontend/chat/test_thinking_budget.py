"""Budgets of reasoning: the fields that the engine core receives, and refusals."""

import pytest

from tests.frontend.fakes import EOS
from tetrad.frontend.llm.thinking_budget import marks_of_budget
from tetrad.frontend.parsing.formats import MarkIds, choose_chat_formats
from tetrad.frontend.request.prompts import Prompt
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams

CHATML, R1 = "<|im_start|>assistant\n", "<｜Assistant｜>"
BUDGET = SamplingParams(thinking_token_budget=7)
HARMONY, ANALYSIS = "<|start|>assistant", "<|channel|>analysis<|message|>"
GRANITE = "Here is my thought process:<|start_of_role|>assistant<|end_of_role|>"


async def formats_named(name):
    async def encode(texts):
        return [list(text.encode()) for text in texts]

    return await choose_chat_formats("none", name, "", encode)


@pytest.mark.parametrize(
    ("name", "prompt", "marks"),
    [
        ("qwen3", CHATML, ("<think>", "</think>")),
        ("qwen3", CHATML + "<think>\n", ("", "</think>")),
        ("qwen3", CHATML + "<think>\n\n</think>\n\n", None),
        ("qwen3", "Once upon a time", ("<think>", "</think>")),
        ("deepseek_r1", R1, ("", "</think>")),
        ("deepseek_r1", R1 + "</think>", None),
        ("granite", GRANITE, ("Here is my thought process:", "Here is my response:")),
        ("granite", CHATML, None),
        ("gpt_oss", HARMONY, (ANALYSIS, "<|end|>")),
        ("gpt_oss", HARMONY + ANALYSIS, ("", "<|end|>")),
        ("gpt_oss", HARMONY + "<|channel|>final<|message|>", None),
    ],
)
async def test_the_prompt_decides_where_the_reasoning_begins(name, prompt, marks):
    found = marks_of_budget(BUDGET, await formats_named(name), Prompt(prompt, list(prompt.encode())))

    assert found == (None if marks is None else MarkIds(*(tuple(mark.encode()) for mark in marks)))


@pytest.mark.parametrize(
    ("name", "prompt", "is_open"),
    [
        ("qwen3", "hi", False),
        ("qwen3", "hi<think>\n", True),
        ("qwen3", "<think>a</think>b", False),
        ("qwen3", "<think>a</think>b<think>", True),
        ("qwen3", "a", False),
        ("deepseek_r1", "hi", True),
    ],
)
async def test_the_ids_of_a_prompt_without_text_decide(name, prompt, is_open):
    formats = await formats_named(name)

    marks = marks_of_budget(BUDGET, formats, Prompt(None, list(prompt.encode())))

    assert marks == MarkIds(() if is_open else tuple(b"<think>"), tuple(b"</think>"))


@pytest.mark.parametrize(("start_after", "is_limited"), [(None, False), ([5], True)])
async def test_a_constraint_from_the_first_token_leaves_no_room_for_reasoning(start_after, is_limited):
    constraint = StructuredOutputsParams(regex="a+", start_after_token_ids=start_after)
    params = SamplingParams(thinking_token_budget=7, structured_outputs=constraint)

    marks = marks_of_budget(params, await formats_named("deepseek_r1"), Prompt("hi", [1]))

    assert (marks is not None) is is_limited


async def test_a_budget_reaches_the_engine_with_its_marks(serve_frontend, engine):
    engine.reply = lambda prompt, position: EOS
    prompts = {"open": "<think>", "closed": "</think>", "own": "hi"}
    async with serve_frontend(reasoning_parser="qwen3") as frontend:
        for prompt in prompts.values():
            body = {"prompt": prompt, "thinking_token_budget": 7}
            assert (await frontend.http.post("/v1/completions", json=body)).status_code == 200
        await frontend.http.post("/v1/completions", json={"prompt": "hi"})

    told = [request.sampling_params for request in engine.requests]
    assert [params.HasField("thinking_token_budget") for params in told] == [True, False, True, False]
    assert [bytes(params.thinking_start_token_ids) for params in told] == [b"", b"", b"<think>", b""]
    assert [bytes(params.thinking_end_token_ids) for params in told] == [b"</think>", b"", b"</think>", b""]
    assert told[0].thinking_token_budget == 7


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"prompt": "hi"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("responses", {"input": "hi"}),
    ],
)
async def test_a_model_without_reasoning_can_have_no_budget(http, engine, path, body):
    response = await http.post(f"/v1/{path}", json={**body, "thinking_token_budget": 5})

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "thinking_token_budget"
    assert "has no reasoning parser" in response.json()["error"]["message"]
    assert engine.requests == []


async def test_what_is_written_behind_the_budget_is_the_answer(serve_frontend, engine):
    """The engine stands in for a worker that ends the reasoning as it was told to."""

    def reply(_, position):
        params = engine.requests[-1].sampling_params
        text = bytes(params.thinking_start_token_ids) + b"0123456789"[: params.thinking_token_budget]
        text += bytes(params.thinking_end_token_ids) + b"yes"
        return text[position] if position < len(text) else EOS

    engine.reply = reply
    messages = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 99}
    async with serve_frontend(reasoning_parser="qwen3") as frontend:
        chat, response, message = [
            (await frontend.http.post(f"/v1/{path}", json=body | {"thinking_token_budget": 4})).json()
            for path, body in (("chat/completions", messages), ("responses", {"input": "hi"}), ("messages", messages))
        ]

    answer = chat["choices"][0]["message"]
    assert (answer["reasoning"], answer["content"]) == ("0123", "yes")
    assert [item["content"][0]["text"] for item in response["output"]] == ["0123", "yes"]
    assert (message["content"][0]["thinking"], message["content"][1]["text"]) == ("0123", "yes")


def test_budgets_fit_the_wire():
    assert SamplingParams(thinking_token_budget=2**40).thinking_token_budget == 2**31 - 1


def test_a_budget_of_minus_one_is_none():
    assert SamplingParams(thinking_token_budget=-1).thinking_token_budget is None
