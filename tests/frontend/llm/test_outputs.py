"""Outputs of a request: text, ids, log-probabilities, and the finish reason."""

import pytest

from tests.carriers import OVER_EACH_CARRIER
from tests.frontend.asking import CUMULATIVE, DELTA, FINAL, ids_of, run
from tests.frontend.fakes import EOS, TEXT
from tetrad.frontend.request.position_logprobs import FlatLogprobs

pytestmark = OVER_EACH_CARRIER


async def test_final_only_output_is_one_and_whole(llm):
    [output] = await run(llm)

    assert output.outputs[0].text == TEXT[:20]
    assert output.outputs[0].token_ids == list(TEXT[:20].encode())
    assert output.outputs[0].finish_reason == "length"
    assert output.prompt_token_ids == list(b"hi")
    assert output.finished


async def test_deltas_add_up_to_the_final_text(llm):
    outputs = await run(llm, output_kind=DELTA)

    assert "".join(output.outputs[0].text for output in outputs) == TEXT[:20]
    assert ids_of(outputs) == list(TEXT[:20].encode())
    assert [output.finished for output in outputs].count(True) == 1


async def test_cumulative_outputs_grow_to_the_final_text(llm):
    outputs = await run(llm, output_kind=CUMULATIVE)

    assert all(TEXT.startswith(output.outputs[0].text) for output in outputs)
    assert outputs[-1].outputs[0].text == TEXT[:20]


async def test_n_outputs_have_consecutive_seeds_even_when_greedy(llm, engine):
    [output] = await run(llm, n=3, temperature=0.0, seed=41)

    assert [each.index for each in output.outputs] == [0, 1, 2]
    assert sorted(request.sampling_params.seed for request in engine.requests) == [41, 42, 43]


async def test_the_outputs_of_one_call_have_its_number_and_other_calls_have_others(llm, engine):
    await run(llm, n=3)
    await run(llm)

    first, *others, second = (request.call_number for request in engine.requests)
    assert others == [first] * 2
    assert 0 not in (first, second)
    assert first != second


async def test_requests_without_a_seed_get_different_ones(llm, engine):
    await run(llm)
    await run(llm)

    first, second = (request.sampling_params.seed for request in engine.requests)
    assert first != second


async def test_stop_token_is_in_the_ids_but_not_in_the_text(llm):
    [output] = await run(llm, stop_token_ids=[ord("q")])

    assert output.outputs[0].text == "The "
    assert output.outputs[0].token_ids == list(b"The q")
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", ord("q"))


async def test_eos_ends_with_no_stop_reason(llm, engine):
    engine.reply = lambda _, position: ord("a") if position < 3 else EOS

    [output] = await run(llm)

    assert (output.outputs[0].text, output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("aaa", "stop", None)


async def test_unfinished_characters_are_held_back_and_flushed_at_the_end(llm, engine):
    data = "aé€".encode()
    engine.reply = lambda _, position: data[position]

    outputs = await run(llm, max_tokens=5, output_kind=DELTA)

    assert "".join(output.outputs[0].text for output in outputs) == "aé�"


@pytest.mark.parametrize("tokens_per_step", [1, 3])
async def test_texts_of_tokens_before_a_stop_token_do_not_depend_on_the_steps(connect, engine, tokens_per_step):
    """The last character is unfinished: the U+FFFD in its place belongs to no token."""
    engine.tokens_per_step = tokens_per_step
    engine.reply = lambda _, position: [ord("a"), 0xE2, EOS][position]
    llm = await connect()

    [output] = await run(llm, logprobs=0)

    assert output.outputs[0].text == "a�"
    texts = [next(iter(position.values())).decoded_token for position in output.outputs[0].logprobs]
    assert texts[:2] == ["a", ""]


async def test_logprobs_come_with_their_tokens_and_texts(llm):
    [output] = await run(llm, logprobs=2, prompt_logprobs=1, max_tokens=3)

    positions = output.outputs[0].logprobs
    assert [position[ord(char)].decoded_token for position, char in zip(positions, "The", strict=True)] == ["T", "h", "e"]
    assert output.outputs[0].cumulative_logprob == pytest.approx(-1.5)
    assert output.prompt_logprobs[0] is None
    assert output.prompt_logprobs[1][ord("i")].logprob == -0.5


async def test_logprobs_without_text_have_no_texts_of_tokens_whatever_others_have_loaded(llm):
    await run(llm, logprobs=2, prompt_logprobs=1, max_tokens=3)  # loads the texts

    [output] = await run(llm, logprobs=2, prompt_logprobs=1, max_tokens=3, detokenize=False)

    positions = [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]
    assert {found.decoded_token for position in positions for found in position.values()} == {None}


async def test_ids_that_the_tokenizer_lacks_leave_the_others_their_texts(connect, tokenizer):
    """Tables of models are padded: their last ids are no token's, and stand among the candidates of log-probabilities."""
    tokenizer.vocab_size = ord("j")
    llm = await connect()

    [output] = await run(llm, logprobs=3, max_tokens=2)

    second = {token_id: found.decoded_token for token_id, found in output.outputs[0].logprobs[1].items()}
    assert second == {ord("h"): "h", ord("i"): "i", ord("j"): None}


async def test_logprobs_behind_a_stop_string_are_trimmed(connect, engine):
    engine.tokens_per_step = 5
    llm = await connect()

    [output] = await run(llm, logprobs=0, stop=["h"])

    assert len(output.outputs[0].token_ids) == len(output.outputs[0].logprobs) == 2


async def test_cached_tokens_are_reported(llm):
    [output] = await run(llm, "x" * 40)

    assert output.num_cached_tokens == 32


@pytest.mark.parametrize("kind", [DELTA, FINAL])
async def test_flat_log_probabilities_are_those_of_the_dicts(llm, kind):
    asked = {"logprobs": 2, "prompt_logprobs": 1, "max_tokens": 3, "output_kind": kind}

    flat, dicts = await run(llm, flat_logprobs=True, **asked), await run(llm, **asked)

    assert all(isinstance(each.outputs[0].logprobs, FlatLogprobs) for each in flat)
    found, expected = ([place for each in outputs for place in each.outputs[0].logprobs] for outputs in (flat, dicts))
    assert found == expected
    assert flat[-1].outputs[0].cumulative_logprob == dicts[-1].outputs[0].cumulative_logprob
    assert list(flat[0].prompt_logprobs) == [{}, *dicts[0].prompt_logprobs[1:]]
