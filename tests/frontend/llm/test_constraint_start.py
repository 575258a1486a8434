"""Where the constraint of a request without a conversation starts: with the first token, or after the reasoning."""

import pytest

from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams

END, START = list(b"</think>"), list(b"<think>")
OPEN = "<|im_start|>assistant\n<think>\n"
OVER = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


async def start_of(frontend, engine, path="/v1/completions", **body):
    """Return the ids after which the engine applies the constraint of a completion, and those that open the part before."""
    fields = {"structured_outputs": {"regex": "a"}, "max_tokens": 1, **body}
    assert (await frontend.http.post(path, json=fields)).status_code == 200
    outputs = engine.requests[-1].sampling_params.structured_outputs
    return list(outputs.start_after_token_ids), list(outputs.opening_token_ids)


@pytest.mark.parametrize(
    ("prompt", "start"),
    [(OPEN, (END, [])), (OVER, ([], [])), ("Once", (END, START))],
    ids=["open", "over", "undecided"],
)
@pytest.mark.parametrize("has_text", [True, False])
async def test_with_a_reasoning_parser_the_constraint_waits_for_the_end_of_reasoning(
    serve_frontend, engine, prompt, start, has_text
):
    async with serve_frontend(reasoning_parser="qwen3") as frontend:
        found = await start_of(frontend, engine, prompt=prompt if has_text else list(prompt.encode()))

    assert found == start


async def test_the_part_of_a_prompt_that_is_left_decides(serve_frontend, engine):
    """The given text ends behind the reasoning; the prompt that the model gets ends in it."""
    truncation = {"truncate_prompt_tokens": len(OPEN), "truncation_side": "right"}
    async with serve_frontend(reasoning_parser="qwen3") as frontend:
        assert await start_of(frontend, engine, prompt=OVER, **truncation) == (END, [])


@pytest.mark.parametrize("reasoning_parser", ["auto", "none"])
async def test_without_a_named_parser_it_holds_from_the_first_token(serve_frontend, engine, reasoning_parser):
    async with serve_frontend(reasoning_parser=reasoning_parser) as frontend:
        assert await start_of(frontend, engine, prompt=OPEN) == ([], [])


async def test_a_response_format_waits_as_well(serve_frontend, engine):
    async with serve_frontend(reasoning_parser="qwen3") as frontend:
        form = {"type": "json_object"}
        found = await start_of(frontend, engine, prompt=OPEN, structured_outputs=None, response_format=form)

    assert found == (END, [])


@pytest.mark.parametrize(("ended", "start_after"), [(True, []), (False, END), (None, [])])
async def test_a_program_may_say_whether_the_reasoning_has_ended(connect, engine, ended, start_after):
    params = SamplingParams(max_tokens=1, structured_outputs=StructuredOutputsParams(regex="a"))
    llm = await connect(reasoning_parser="qwen3")

    async for _ in llm.generate(OVER, params, "r", reasoning_ended=ended):
        pass

    outputs = engine.requests[-1].sampling_params.structured_outputs
    assert (list(outputs.start_after_token_ids), list(outputs.opening_token_ids)) == (start_after, [])


async def test_a_rendered_completion_says_where_its_constraint_starts(serve_frontend, engine):
    async with serve_frontend(reasoning_parser="qwen3") as frontend:
        body = {"prompt": OPEN, "structured_outputs": {"regex": "a"}, "max_tokens": 1}
        [rendered] = (await frontend.http.post("/v1/completions/render", json=body)).json()
        rendered = {name: value for name, value in rendered.items() if value is not None}
        assert (await frontend.http.post("/inference/v1/generate", json=rendered)).status_code == 200

    assert list(engine.requests[-1].sampling_params.structured_outputs.start_after_token_ids) == END
