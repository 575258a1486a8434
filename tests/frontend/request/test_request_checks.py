"""Errors of a request are raised before anything is scheduled."""

import asyncio

import pytest

from tests.frontend.asking import run
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest, Overloaded, PromptTooLong


async def test_max_tokens_is_clamped_to_the_context(llm, engine):
    await run(llm, "x" * 500, max_tokens=None)
    await run(llm, "x" * 500, max_tokens=1000)

    assert [request.sampling_params.max_tokens for request in engine.requests] == [12, 12]


@pytest.mark.parametrize(
    ("prompt", "error", "text"),
    [
        ("", InvalidRequest, "The decoder prompt cannot be empty"),
        ([], InvalidRequest, "The decoder prompt cannot be empty"),
        (
            "x" * 513,
            PromptTooLong,
            r"^This model's maximum context length is 512 tokens\. However, you requested 514 tokens \(513 in the prompt,",
        ),
        (
            "x" * 512,
            PromptTooLong,
            r"^This model's maximum context length is 512 tokens\. .* 513 tokens \(512 in the prompt, at least 1 in",
        ),
        (
            "x" * 100_000,
            PromptTooLong,
            "^This model's maximum context length is 512 tokens.*100000 characters, but at most 65536",
        ),
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


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cache_salt": "a\ud800"}, r"^cache_salt contains the lone surrogate U\+D800 at character 1: it is not valid text\.$"),
        ({"prediction": "a\ud800"}, r"^prediction contains the lone surrogate U\+D800 at character 1: it is not valid text\.$"),
        ({"arrival_time": float("nan")}, r"^arrival_time must be Unix seconds in \[0, 10000000000\], got nan\.$"),
        ({"arrival_time": -1.0}, r"^arrival_time must be Unix seconds in \[0, 10000000000\], got -1\.0\.$"),
        ({"arrival_time": 1e300}, r"^arrival_time must be Unix seconds in \[0, 10000000000\], got 1e\+300\.$"),
        ({"arrival_time": "now"}, r"^arrival_time must be a number, got 'now'\.$"),
        ({"priority": 1.5}, r"^priority must be an integer, got 1\.5\.$"),
        ({"priority": None}, r"^priority must be an integer, got None\.$"),
        ({"data_parallel_rank": "0"}, r"^data_parallel_rank must be an integer, got '0'\.$"),
    ],
)
async def test_options_that_fit_no_message_are_refused(llm, engine, options, text):
    with pytest.raises(InvalidRequest, match=text):
        await llm.add_request("r", "hi", SamplingParams(), **options)

    assert engine.requests == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"prediction": None}, r"^prediction must be a string, empty for none, got NoneType$"),
        ({"trace_headers": "traceparent"}, r"^trace_headers must map names to strings, got str$"),
        ({"trace_headers": {"traceparent": 7}}, r"^trace_headers must map names to strings, got 'traceparent': 7$"),
        ({"trace_headers": {7: "a"}}, r"^trace_headers must map names to strings, got 7: 'a'$"),
    ],
)
async def test_options_of_other_types_are_refused_with_their_names(llm, engine, options, text):
    with pytest.raises(TypeError, match=text):
        await llm.add_request("r", "hi", SamplingParams(), **options)

    assert engine.requests == []


async def test_far_too_large_text_is_never_tokenized(llm, tokenizer):
    with pytest.raises(PromptTooLong):
        await run(llm, "x" * 10_000_000)

    assert tokenizer.num_encoded == 0


async def test_a_text_that_is_truncated_may_be_longer_than_fits(llm, tokenizer):
    params = SamplingParams(max_tokens=1)
    with pytest.raises(PromptTooLong, match="65537 characters, but at most 65536"):
        await llm.add_request("r", "x" * 65_537, params)
    assert tokenizer.num_encoded == 0

    await llm.add_request("r", "x" * 65_537, params, truncate_prompt_tokens=3)

    assert tokenizer.num_encoded == 1


LONG = "x" * 65_537
USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([{"role": "user", "content": LONG}], {}),
        ([{"role": "user", "content": [{"type": "text", "text": LONG}]}], {}),
        ([USER, {"role": "assistant", "content": "", "reasoning_content": LONG}], {}),
        ([USER], {"tools": [{"type": "function", "function": {"name": "f", "description": LONG}}]}),
        ([USER], {"documents": [{"text": LONG}]}),
        ([USER], {"chat_template_kwargs": {"mood": LONG}}),
    ],
    ids=["content", "part", "reasoning", "tool", "document", "variable of the template"],
)
async def test_a_conversation_that_cannot_fit_is_not_rendered(llm, tokenizer, messages, fields):
    with pytest.raises(PromptTooLong, match="at most 65536") as refused:
        await llm.texts.encode_chat(messages, **fields)

    assert refused.value.field == "messages"
    assert tokenizer.rendered == []


async def test_a_template_may_write_no_longer_prompt_than_a_client(llm, tokenizer):
    await llm.texts.encode_chat([USER])

    assert [request.max_prompt_chars for request in tokenizer.rendered] == [65_536]


async def test_texts_that_are_tokenized_count_as_queued_until_they_are(connect, tokenizer):
    """By their characters, also beyond the context: it is the tokenizer's memory that they take."""
    llm = await connect(max_num_queued_tokens=10_000)
    tokenizer.hung.clear()
    first = asyncio.create_task(llm.texts.tokenize("x" * 32_000))
    await asyncio.sleep(0)

    for text in (llm.texts.tokenize("x" * 10_000), llm.texts.encode_chat([{"role": "user", "content": "x" * 10_000}])):
        with pytest.raises(Overloaded, match="Prompts of 8001 tokens wait"):
            await text
    with pytest.raises(Overloaded, match="Prompts of 8001 tokens wait"):
        await llm.add_request("r", "x" * 10_000, SamplingParams(), truncate_prompt_tokens=3)

    tokenizer.hung.set()
    assert len(await first) == 32_000
    assert len(await llm.texts.tokenize("x" * 10_000)) == 10_000


async def test_nul_is_just_text(llm, engine):
    await run(llm, "a\0b")

    assert engine.requests[0].prompt_token_ids[4:8] == b"\0\0\0\0"


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"stop": ["x"] * 65}, "at most 64 strings, got 65"),
        ({"stop": "x" * 1025}, "at most 1024 characters, got 1025"),
        ({"bad_words": ["x" * 1025]}, "A bad word may have at most 1024 characters, got 1025"),
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
