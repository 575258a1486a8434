"""One request's life: text, ids, stop strings, aborts, limits."""

import asyncio
from types import SimpleNamespace

import pytest
from frontend_fakes import EOS, TEXT

from tetrad.frontend.prompts import TokensPrompt
from tetrad.frontend.sampling_params import RequestOutputKind, SamplingParams
from tetrad.services.errors import InvalidRequest, Overloaded, PromptTooLong, Unavailable
from tetrad.services.tracing import NoSpan, NoTracer

FINAL, DELTA, CUMULATIVE = RequestOutputKind.FINAL_ONLY, RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE


async def run(llm, prompt="hi", request_id="r", **params):
    rank = params.pop("data_parallel_rank", None)
    fields = {"max_tokens": 20, "output_kind": FINAL} | params
    outputs = llm.generate(prompt, SamplingParams(**fields), request_id, data_parallel_rank=rank)
    return [output async for output in outputs]


def ids_of(outputs):
    return [token_id for output in outputs for token_id in output.outputs[0].token_ids]


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


async def test_stop_string_that_is_complete_first_wins(llm):
    [output] = await run(llm, stop=["quick brown", "ick", "brown"])

    assert (output.outputs[0].text, output.outputs[0].stop_reason) == ("The qu", "ick")


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


async def test_ids_only_requests_send_nothing_to_the_tokenizer(llm, tokenizer):
    [output] = await run(llm, TokensPrompt(prompt_token_ids=[1, 2, 3]), detokenize=False)

    assert output.outputs[0].text == ""
    assert len(output.outputs[0].token_ids) == 20
    assert (tokenizer.num_appends, tokenizer.num_encoded) == (0, 0)


async def test_logprobs_come_with_their_tokens_and_texts(llm):
    [output] = await run(llm, logprobs=2, prompt_logprobs=1, max_tokens=3)

    positions = output.outputs[0].logprobs
    assert [position[ord(char)].decoded_token for position, char in zip(positions, "The", strict=True)] == ["T", "h", "e"]
    assert output.outputs[0].cumulative_logprob == pytest.approx(-1.5)
    assert output.prompt_logprobs[0] is None
    assert output.prompt_logprobs[1][ord("i")].logprob == -0.5


async def test_logprobs_behind_a_stop_string_are_trimmed(connect, engine):
    engine.tokens_per_step = 5
    llm = await connect()

    [output] = await run(llm, logprobs=0, stop=["h"])

    assert len(output.outputs[0].token_ids) == len(output.outputs[0].logprobs) == 2


async def test_cached_tokens_are_reported(llm):
    [output] = await run(llm, "x" * 40)

    assert output.num_cached_tokens == 32


async def test_abort_ends_with_a_synthetic_output(llm, engine):
    engine.pause()
    task = asyncio.create_task(run(llm, max_tokens=400, output_kind=DELTA))
    await engine.until(lambda: engine.running)
    await engine.take(3)

    await llm.abort(["r", "unknown"])
    outputs = await task

    assert outputs[-1].outputs[0].finish_reason == "abort"
    await engine.until(lambda: engine.aborted)
    assert llm.num_unfinished_requests == 0


async def test_abort_ends_all_n_outputs(llm, engine):
    engine.pause()
    task = asyncio.create_task(run(llm, n=2, max_tokens=400))
    await engine.until(lambda: len(engine.running) == 2)

    await llm.abort("r")
    [output] = await task

    assert [each.finish_reason for each in output.outputs] == ["abort", "abort"]


async def test_leaving_the_loop_aborts_at_the_engine(llm, engine):
    outputs = llm.generate("hi", SamplingParams(max_tokens=400, output_kind=DELTA), "r")
    await anext(outputs)

    await outputs.aclose()

    await engine.until(lambda: engine.aborted)
    assert llm.num_unfinished_requests == 0


async def test_cancelled_consumer_aborts_at_the_engine(llm, engine):
    engine.pause()
    task = asyncio.create_task(run(llm, max_tokens=400))
    await engine.until(lambda: engine.running)

    task.cancel()

    await engine.until(lambda: engine.aborted)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_slow_consumer_gets_merged_deltas_and_holds_nobody_up(llm, engine):
    slow = await llm.add_request("slow", "hi", SamplingParams(max_tokens=100, output_kind=DELTA))
    # Same length and a step later: when it is done, so is the slow one.
    await run(llm, max_tokens=100, request_id="fast")

    outputs = [output async for output in slow]

    assert len(outputs) == 1
    assert outputs[0].outputs[0].text == (TEXT * 3)[:100]
    assert len(outputs[0].outputs[0].token_ids) == 100


async def test_one_add_message_a_tick_and_one_detokenize_message_a_step(llm, engine, tokenizer):
    engine.pause()
    tasks = [asyncio.create_task(run(llm, [i + 1], f"r{i}", max_tokens=30)) for i in range(64)]
    await engine.until(lambda: len(engine.running) == 64)

    # Steps that are found together are joined: none begins before the last was brought.
    for num_steps in range(1, 31):
        await engine.allow(1)
        await tokenizer.until_brought(num_steps)
    results = await asyncio.gather(*tasks)

    assert all(result[0].outputs[0].text == TEXT[:30] for result in results)
    assert engine.num_add_messages == 1
    assert engine.num_steps == 30
    assert tokenizer.num_appends == llm.num_engine_steps == 30


async def test_one_failing_handle_fails_alone(llm, engine, tokenizer):
    engine.pause()
    tasks = [asyncio.create_task(run(llm, [i + 1], f"r{i}")) for i in range(3)]
    await engine.until(lambda: len(engine.running) == 3)
    tokenizer.failing_handles.add(engine.requests[1].handle)

    await engine.allow(None)
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [type(result) for result in results] == [list, InvalidRequest, list]


async def test_handles_are_closed_at_the_tokenizer(llm, tokenizer):
    for i in range(3):
        await run(llm, request_id=f"r{i}")

    assert len(tokenizer.open_handles) <= 1


async def test_rejected_request_raises_its_own_error(llm, engine):
    engine.reject = lambda request: Overloaded("queue full", retry_after_s=3.0)

    with pytest.raises(Overloaded, match="queue full") as caught:
        await run(llm)

    assert caught.value.retry_after_s == 3.0
    assert llm.num_unfinished_requests == 0


async def test_max_tokens_is_clamped_to_the_context(llm, engine):
    await run(llm, "x" * 500, max_tokens=None)
    await run(llm, "x" * 500, max_tokens=1000)

    assert [request.sampling_params.max_tokens for request in engine.requests] == [12, 12]


@pytest.mark.parametrize(
    ("prompt", "error", "text"),
    [
        ("", InvalidRequest, "The decoder prompt cannot be empty"),
        ([], InvalidRequest, "The decoder prompt cannot be empty"),
        ("x" * 513, PromptTooLong, r"\(length 513\) is longer than the maximum model length of 512"),
        ("x" * 512, PromptTooLong, r"plus the number of requested output tokens \(at least 1\)"),
        ("x" * 100_000, PromptTooLong, "100000 characters, but at most 65536"),
        ([1, 258], InvalidRequest, "Token id 258 in the prompt is out of vocabulary. Vocabulary size: 258"),
        ([1, -1], InvalidRequest, "Token id -1"),
        ([1, "a"], InvalidRequest, "only integers, got 'a'"),
        ("a\ud800b", InvalidRequest, r"lone surrogate U\+D800 at character 1"),
        ({"promt": "a"}, InvalidRequest, "no key 'promt'"),
        (3, InvalidRequest, "got int"),
    ],
)
async def test_wrong_prompts_are_refused_before_anything_is_scheduled(llm, engine, prompt, error, text):
    with pytest.raises(error, match=text):
        await run(llm, prompt)

    assert engine.requests == []
    assert llm.num_unfinished_requests == 0


async def test_far_too_large_text_is_never_tokenized(llm, tokenizer):
    with pytest.raises(PromptTooLong):
        await run(llm, "x" * 10_000_000)

    assert tokenizer.num_encoded == 0


async def test_nul_is_just_text(llm, engine):
    await run(llm, "a\0b")

    assert engine.requests[0].prompt_token_ids[4:8] == b"\0\0\0\0"


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"stop": list("abcde")}, "at most 4 strings, got 5"),
        ({"stop": "x" * 1025}, "at most 1024 characters, got 1025"),
        ({"logprobs": 21}, "Requested sample logprobs of 21, which is greater than max allowed: 20"),
        ({"prompt_logprobs": -1}, "Requested prompt logprobs of 258"),
        ({"logit_bias": {258: 1.0}}, r"token_id\(s\) \[258\] in logit_bias contain out-of-vocab"),
        ({"n": 1025}, "n must be at most 1024, got 1025"),
    ],
)
async def test_parameters_beyond_the_servers_limits_are_refused(llm, engine, params, text):
    with pytest.raises(InvalidRequest, match=text):
        await run(llm, **params)

    assert engine.requests == []


async def test_bad_words_are_sent_with_and_without_a_space(llm, engine):
    await run(llm, bad_words=["no"])

    sent = [bytes(word.ids[::4]) for word in engine.requests[0].sampling_params.bad_words_token_ids]
    assert sent == [b"no"], "a space of its own would ban only double spaces"


async def test_bad_word_of_spaces_alone_is_no_bug(llm):
    await run(llm, bad_words=["  "])


class OpenSpans(NoTracer):
    """A tracer that knows which spans have not ended."""

    def __init__(self):
        self.names = []

    def start_span(self, name, context, **_):
        self.names.append(name)
        span = NoSpan(context)
        return SimpleNamespace(context=context, set_attributes=span.set_attributes, end=lambda **_: self.names.remove(name))


async def test_a_request_that_no_engine_can_have_leaves_no_span_open(llm):
    llm.tracer = OpenSpans()

    with pytest.raises(InvalidRequest, match="out of range"):
        await run(llm, data_parallel_rank=7)

    assert llm.tracer.names == []


async def test_requests_are_spread_over_engines(tokenizer, engine, sockets, connect):
    second = type(engine)(sockets / "e2")
    await second.start()
    llm = await connect(engine_targets=(engine.target, second.target))

    # All at once: one that ended before the next is placed would leave its engine as idle as the other.
    engine.pause()
    second.pause()
    asking = asyncio.gather(*(run(llm, request_id=f"r{i}") for i in range(6)))
    for each in (engine, second):
        await each.until(lambda each=each: len(each.running) == 3)
        await each.allow(None)
    await asking
    await run(llm, request_id="pinned", data_parallel_rank=1)

    assert (len(engine.requests), len(second.requests)) == (3, 4)
    await llm.close()
    await second.kill()


async def test_connect_gives_up_with_a_clear_text(tokenizer, engine, connect):
    await engine.kill()

    with pytest.raises(Unavailable, match=r"engine core at unix:.* was not ready within 0.2 s"):
        await connect(ready_timeout_s=0.2)


async def test_chat_parts_become_text(llm):
    prompt = await llm.texts.encode_chat(
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    )

    assert prompt["prompt"] == "<user>a\nb\n<assistant>"


async def test_generation_config_gives_defaults(tokenizer, connect):
    tokenizer.generation_config = '{"temperature": 0.6, "top_p": 0.9, "do_sample": true}'
    llm = await connect()

    assert llm.get_default_sampling_params().temperature == 0.6
