"""The effect of every sampling parameter, over all services with the real model, and one batch with all of them.

Some fields have no effect here: spaces_between_special_tokens needs a tokenizer that is not byte-level (tests/tokenizer_svc),
stream_interval and flat_logprobs show in tests/frontend, extra_args are for custom processors (test_logits_processors.py), and
ids are scored at a prompt's positions in test_prompt_scores.py.
"""

import dataclasses

import pytest

from tests.one_process_llm import one_process_llm
from tetrad import SamplingParams
from tetrad.frontend.request.sampling_params import RepetitionDetection, RequestOutputKind
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams

PROMPT = "The capital of France is"
LONG_PROMPT = "One two three four five six seven eight nine ten eleven twelve. " * 12
EOS, END_OF_TURN = 2, "<|im_end|>"
ENDS_AT_ONCE = {"logit_bias": {EOS: 100.0}}
ELSEWHERE = {"spaces_between_special_tokens", "extra_args", "stream_interval", "flat_logprobs"} | {
    "prompt_logprob_token_ids",
    "prompt_logprob_start",
}

# name of a request: parameters besides temperature 0 and max_tokens 10
REQUESTS = {
    "plain": {},
    "n": {"n": 3, "temperature": 1.5, "seed": 5},
    "n_greedy": {"n": 2},
    "presence_penalty": {"presence_penalty": 2.0, "max_tokens": 24},
    "frequency_penalty": {"frequency_penalty": 2.0, "max_tokens": 24},
    "repetition_penalty": {"repetition_penalty": 2.0},
    "without_penalty": {"max_tokens": 24},
    "temperature": {"temperature": 2.0, "seed": 1},
    "top_p": {"temperature": 2.0, "seed": 1, "top_p": 1e-6},
    "top_k": {"temperature": 2.0, "seed": 1, "top_k": 1},
    "min_p": {"temperature": 2.0, "seed": 1, "min_p": 1.0},
    "seed": {"temperature": 2.0, "seed": 1},
    "another_seed": {"temperature": 2.0, "seed": 2},
    "stop": {"stop": ["aris"]},
    "include_stop_str_in_output": {"stop": ["aris"], "include_stop_str_in_output": True},
    "stop_token_ids": {"stop_token_ids": [7042]},  # " Paris"
    "ends_at_once": ENDS_AT_ONCE,
    "ignore_eos": {**ENDS_AT_ONCE, "ignore_eos": True},
    "skip_special_tokens": {**ENDS_AT_ONCE, "ignore_eos": True, "skip_special_tokens": False},
    "min_tokens": {**ENDS_AT_ONCE, "min_tokens": 4},
    "max_tokens": {"max_tokens": 3},
    "logprobs": {"logprobs": 2},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "logprob_token_ids": {"logprob_token_ids": [7042, 5]},
    "detokenize": {"detokenize": False},
    "structured_outputs": {
        "structured_outputs": StructuredOutputsParams(choice=["London", "Rome"]),
        "thinking_token_budget": 4,  # the model has a reasoning parser: the constraint waits for the end of the reasoning
        "max_tokens": 20,
    },
    "logit_bias": {"logit_bias": {100: 100.0}},
    "allowed_token_ids": {"allowed_token_ids": [10, 20, 30]},
    "bad_words": {"bad_words": ["Paris"]},
    "truncate_prompt_tokens": {"truncate_prompt_tokens": 2},
    "repetition_detection": {
        "logit_bias": {100: 100.0},
        "max_tokens": 30,
        "repetition_detection": RepetitionDetection(max_pattern_size=2, min_pattern_size=1, min_count=5),
    },
    "thinking_token_budget": {"thinking_token_budget": 4},
    "output_kind": {"output_kind": RequestOutputKind.FINAL_ONLY},
}


@pytest.fixture(scope="module")
def llm(smollm2):
    # The model does not reason; this format takes all it says for reasoning, up to the mark that it never writes by itself.
    with one_process_llm(smollm2, max_model_len=512, reasoning_parser="deepseek_r1") as llm:
        yield llm


@pytest.fixture(scope="module")
def results(llm):
    params = [SamplingParams(**{"temperature": 0.0, "max_tokens": 10, **fields}) for fields in REQUESTS.values()]
    outputs = llm.generate([PROMPT] * len(params), params, use_tqdm=False)
    return dict(zip(REQUESTS, outputs, strict=True))


@pytest.fixture(scope="module")
def first(results):
    return {name: output.outputs[0] for name, output in results.items()}


def test_every_field_has_an_effect_somewhere():
    names = {field.name for field in dataclasses.fields(SamplingParams) if field.init}

    assert names - set(REQUESTS) - ELSEWHERE == {"skip_reading_prefix_cache"}  # a test of its own below


def test_how_many(results, first):
    assert len({output.text for output in results["n"].outputs}) == 3
    assert [output.text for output in results["n_greedy"].outputs] == [first["plain"].text] * 2


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_penalties_change_what_is_said(first, name):
    plain = first["without_penalty"].token_ids

    assert first[name].token_ids != plain[: len(first[name].token_ids)]


def test_randomness(first):
    assert first["temperature"].text != first["plain"].text
    assert first["temperature"].text == first["seed"].text != first["another_seed"].text
    assert {first[name].text for name in ("top_p", "top_k", "min_p", "output_kind")} == {first["plain"].text}


def test_where_it_ends(first):
    assert "Paris" in first["plain"].text
    assert (first["stop"].text, first["stop"].stop_reason, first["stop"].finish_reason) == (" P", "aris", "stop")
    assert first["include_stop_str_in_output"].text == " Paris"
    assert (first["stop_token_ids"].text, first["stop_token_ids"].token_ids) == ("", [7042])
    assert first["stop_token_ids"].stop_reason == 7042
    assert (first["ends_at_once"].token_ids, first["ends_at_once"].stop_reason) == ([EOS], None)
    assert first["ignore_eos"].token_ids == [EOS] * 10
    assert first["min_tokens"].token_ids[4:] == [EOS]
    assert EOS not in first["min_tokens"].token_ids[:4]
    assert (first["max_tokens"].token_ids, first["max_tokens"].finish_reason) == (first["plain"].token_ids[:3], "length")
    assert (first["repetition_detection"].finish_reason, first["repetition_detection"].token_ids) == ("repetition", [100] * 5)


def test_what_is_returned(results, first):
    plain = first["plain"]
    positions = first["logprobs"].logprobs
    best = [next(iter(position.values())) for position in positions]
    assert [len(position) for position in positions] == [2] * 10
    assert [each.rank for each in best] == [1] * 10
    assert "".join(each.decoded_token for each in best) == plain.text
    assert first["logprobs"].cumulative_logprob == pytest.approx(sum(each.logprob for each in best))
    assert (plain.logprobs, plain.cumulative_logprob) == (None, None)

    chosen = first["logprob_token_ids"].logprobs
    assert [set(position) for position in chosen] == [{7042, 5, sampled} for sampled in plain.token_ids]
    assert chosen[0][7042].logprob == pytest.approx(positions[0][7042].logprob, abs=1e-4)

    assert (first["detokenize"].text, first["detokenize"].token_ids) == ("", plain.token_ids)
    assert (first["ignore_eos"].text, first["skip_special_tokens"].text) == ("", END_OF_TURN * 10)
    assert results["truncate_prompt_tokens"].prompt_token_ids == results["plain"].prompt_token_ids[-2:]


def test_what_may_be_said(first):
    assert first["structured_outputs"].text.partition("</think>")[2] in ("London", "Rome")
    assert set(first["logit_bias"].token_ids) == {100}
    assert set(first["allowed_token_ids"].token_ids) <= {10, 20, 30}
    assert "Paris" not in first["bad_words"].text


def test_reasoning_ends_with_its_budget_and_an_answer_follows(llm, first):
    limited, plain = first["thinking_token_budget"], first["plain"]

    assert limited.token_ids[:4] == plain.token_ids[:4]
    assert limited.text.partition("</think>")[0] == llm.get_tokenizer().decode(plain.token_ids[:4])
    assert limited.text.partition("</think>")[2].strip()


def test_a_constraint_holds_behind_reasoning_that_ended_with_its_budget(llm):
    end = llm.get_tokenizer().encode("</think>")
    constraint = StructuredOutputsParams(choice=["London", "Rome"], start_after_token_ids=end)
    params = SamplingParams(temperature=0.0, max_tokens=20, thinking_token_budget=4, structured_outputs=constraint)

    [output] = llm.generate(PROMPT, params, use_tqdm=False)

    thoughts, end, answer = output.outputs[0].text.partition("</think>")
    assert (bool(thoughts), end, output.outputs[0].finish_reason) == (True, "</think>", "stop")
    assert answer in ("London", "Rome")


def test_a_constraint_holds_at_once_if_no_reasoning_is_opened(llm):
    start, end = (llm.get_tokenizer().encode(mark) for mark in ("<think>", "</think>"))
    constraint = StructuredOutputsParams(choice=["London", "Rome"], start_after_token_ids=end, opening_token_ids=start)

    [output] = llm.generate(PROMPT, SamplingParams(temperature=0.0, structured_outputs=constraint), use_tqdm=False)

    assert output.outputs[0].text in ("London", "Rome")


def test_logprobs_of_a_prompt_are_those_it_was_generated_with(llm, results, first):
    """Generated greedily and scored as a prompt, tokens have the same log-probabilities, over chunks and a cached prefix."""
    prompt = results["logprobs"].prompt_token_ids
    generated = first["logprobs"]
    whole = {"prompt_token_ids": prompt + generated.token_ids}

    [scored] = llm.generate(whole, SamplingParams(prompt_logprobs=2, max_tokens=1), use_tqdm=False)

    assert scored.prompt_logprobs[0] is None
    assert len(scored.prompt_logprobs) == len(prompt) + 10
    for position, sampled, expected in zip(
        scored.prompt_logprobs[len(prompt) :], generated.token_ids, generated.logprobs, strict=True
    ):
        assert position[sampled].logprob == pytest.approx(expected[sampled].logprob, abs=1e-4)
        assert position[sampled].rank == 1
    assert [next(iter(each)) for each in scored.prompt_logprobs[1:]] == whole["prompt_token_ids"][1:]
    assert "".join(next(iter(each.values())).decoded_token for each in scored.prompt_logprobs[1:]).endswith(generated.text)


def test_outputs_of_one_prompt_share_its_blocks(llm):
    """The prompt's full blocks are computed once for n = 8: the seven others find them, in the very step that fills them."""

    def hits() -> float:
        return sum(metric.value for metric in llm.get_metrics() if metric.name == "tetrad:prefix_cache_hits")

    params = SamplingParams(n=8, temperature=1.0, seed=3, max_tokens=4)
    before = hits()

    [output] = llm.generate(LONG_PROMPT, params, use_tqdm=False)

    full_blocks = (len(output.prompt_token_ids) - 1) // 16
    assert full_blocks > 8
    assert hits() - before == 7 * full_blocks * 16


def test_reading_the_prefix_cache_can_be_left_out(llm):
    params = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=1), SamplingParams(max_tokens=1)]
    params[2].skip_reading_prefix_cache = True

    cached = [llm.generate("B" + LONG_PROMPT, each, use_tqdm=False)[0].num_cached_tokens for each in params]

    assert cached[0] == cached[2] == 0
    assert cached[1] > 100
