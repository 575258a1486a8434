"""Stop strings end a request where they are complete, and no part of them is shown before."""

import pytest

from tests.carriers import OVER_EACH_CARRIER
from tests.frontend.asking import DELTA, FINAL, ids_of, run
from tests.frontend.fakes import TEXT
from tetrad.frontend.request.sampling_params import SamplingParams

pytestmark = OVER_EACH_CARRIER


@pytest.mark.parametrize("tokens_per_step", [1, 2, 3, 7])
@pytest.mark.parametrize("stop", ["quick", "ick b", "T", " fo"])
@pytest.mark.parametrize("kind", [DELTA, FINAL])
async def test_stop_string_is_found_at_every_split(connect, engine, tokens_per_step, stop, kind):
    engine.tokens_per_step = tokens_per_step
    llm = await connect()

    outputs = await run(llm, stop=[stop], output_kind=kind, max_tokens=60)

    text = "".join(output.outputs[0].text for output in outputs)
    ids = ids_of(outputs)
    end = TEXT.index(stop)
    assert text == TEXT[:end]
    assert bytes(ids).decode() == TEXT[: end + len(stop)], "surplus ids must be trimmed"
    assert (outputs[-1].outputs[0].finish_reason, outputs[-1].outputs[0].stop_reason) == ("stop", stop)


async def test_stop_string_may_be_part_of_the_output(llm):
    outputs = await run(llm, stop=["quick"], include_stop_str_in_output=True, output_kind=DELTA)

    assert "".join(output.outputs[0].text for output in outputs) == "The quick"


@pytest.mark.parametrize("stop", ["quick", ["quick"]])
async def test_a_stop_string_may_be_set_after_the_construction(llm, stop):
    """As programs do with the parameters that they received."""
    params = SamplingParams(max_tokens=20, output_kind=FINAL)
    params.stop = stop

    [output] = [output async for output in llm.generate("hi", params, "r")]

    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("The ", "quick")


async def test_stop_string_that_is_complete_first_wins(llm):
    [output] = await run(llm, stop=["quick brown", "ick", "brown"])

    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("The qu", "ick")


async def test_a_request_may_have_many_stop_strings(llm):
    """Evaluation harnesses and editors send more than the 4 of OpenAI's API, as vLLM allows."""
    others = [f"<stop {number}>" for number in range(63)]

    [output] = await run(llm, stop=[*others, "brown"])

    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("The quick ", "brown")


async def test_stop_strings_that_end_together_are_taken_in_list_order(llm):
    [first] = await run(llm, stop=["quick", "ck"])
    [second] = await run(llm, stop=["ck", "quick"])

    assert (first.outputs[0].text, second.outputs[0].text) == ("The ", "The qui")


async def test_no_prefix_of_a_stop_string_is_ever_shown(llm):
    outputs = await run(llm, stop=["quick red"], output_kind=DELTA, max_tokens=40)

    shown = ""
    for output in outputs[:-1]:
        shown += output.outputs[0].text
        assert len(shown) <= max(0, sum(len(each.outputs[0].token_ids) for each in outputs) - 8)
    assert shown + outputs[-1].outputs[0].text == TEXT[:40]


async def test_stop_strings_wait_for_min_tokens(llm):
    [output] = await run(llm, stop=["he"], min_tokens=10, max_tokens=60)

    assert output.outputs[0].text == TEXT[: TEXT.index("the") + 1]


async def test_stop_string_aborts_at_the_engine(llm, engine):
    await run(llm, stop=["quick"], max_tokens=400)

    await engine.until(lambda: engine.aborted)
    assert engine.aborted == [engine.requests[0].request_id]
