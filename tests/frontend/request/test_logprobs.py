"""Log-probabilities for clients: texts that add up, bytes, ids, offsets, and the cut at a stop string."""

import codecs
import gc
from functools import partial

import pytest

from tests.frontend.fakes import text_of
from tetrad.frontend.api.http.schemas.large_parts import LargeParts
from tetrad.frontend.api.http.schemas.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs_json
from tetrad.frontend.request.logprobs import drop_candidates, positions_of, texts_in_context
from tetrad.frontend.request.outputs import Logprob
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.request.steps import LogprobRows

TEXT = "a🙂é漢!"
IDS = list(TEXT.encode())


def rows_of(ids, *rivals):
    width = 1 + len(rivals)
    candidates = [i for actual in ids for i in (actual, *rivals)]
    return LogprobRows(candidates, [-0.5] * len(candidates), [1] * len(ids), width)


def added_by(ids):
    """Return what an incremental detokenizer makes of each byte."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [decoder.decode(bytes([i])) for i in ids]


async def decode(sequences):
    return [text_of(ids) for ids in sequences]


def test_bytes_of_a_chats_tokens_add_up_to_the_text():
    positions = positions_of(rows_of(IDS), lambda i: text_of([i]), added_by(IDS))

    content = chat_logprobs(IDS, positions, 0, parts=LargeParts()).content

    assert bytes(byte for token in content for byte in token.bytes).decode() == TEXT
    assert "".join(token.token for token in content) == TEXT


def test_a_rival_that_is_part_of_a_character_has_no_bytes():
    [content] = chat_logprobs(
        [97], positions_of(rows_of([97], 0xF0), lambda i: text_of([i]), ["a"]), 2, parts=LargeParts()
    ).content

    assert [(top.token, top.bytes) for top in content.top_logprobs] == [("a", [97]), ("\N{REPLACEMENT CHARACTER}", None)]


def test_special_tokens_keep_their_names():
    [position] = positions_of(rows_of([5]), lambda _: "<|end|>", [""])

    assert position[5].decoded_token == "<|end|>"


def test_a_position_of_many_candidates_is_filled_later_and_is_the_same_then():
    """Steps with everybody's tokens do not wait until a whole vocabulary has names."""
    ids = list(range(2000))
    rows = LogprobRows([7, *ids], [-0.5, *(-float(i) for i in ids)], [8], 2001)

    [position] = positions_of(rows, str, ["seven"])

    assert list(position) == [7]
    position.fill()
    position.fill()
    assert list(position) == [7, *range(7), *range(8, 2000)]
    assert (position[7], position[3]) == (Logprob(-0.5, 8, "seven"), Logprob(-3.0, 4, "3"))


@pytest.fixture
def collections():
    """Yield the list of the garbage collections during a test, each after at most 5,000 new objects."""
    thresholds, found = gc.get_threshold(), []
    gc.collect()
    gc.set_threshold(5_000)
    gc.callbacks.append(note := lambda phase, facts: found.append(phase))
    yield found
    gc.callbacks.remove(note)
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize(
    "render",
    [
        partial(completion_logprobs, [7] * 3, num_top=10_000, start=0),
        partial(chat_logprobs, [7] * 3, num_top=10_000),
        prompt_logprobs_json,
    ],
    ids=["completion", "chat", "prompt"],
)
def test_many_candidates_are_rendered_without_garbage_collections(collections, render):
    """A collection holds the interpreter lock: with a million objects all other requests would wait for 0.1 s."""
    ids = list(range(10_000))
    rows = LogprobRows([7, *ids] * 3, [-0.5] * 30_003, [8] * 3, 10_001)

    positions = positions_of(rows, str)
    for position in positions:
        position.fill()
    parts = LargeParts()
    parts.take(render(positions=positions, parts=parts))
    drop_candidates(positions)

    assert not collections


async def test_texts_of_a_prompt_add_up_to_it():
    texts = await texts_in_context(IDS, lambda i: text_of([i]), decode)

    assert "".join(texts) == TEXT
    assert texts[:6] == ["a", "", "", "", "🙂", ""]


async def test_a_prompt_of_whole_characters_is_not_decoded_again():
    async def never(sequences):
        raise AssertionError(sequences)

    assert await texts_in_context([97, 98], lambda i: text_of([i]), never) == ["a", "b"]


def test_text_offsets_count_characters():
    lists = completion_logprobs(
        IDS, positions_of(rows_of(IDS), lambda i: text_of([i]), added_by(IDS)), 0, start=10, parts=LargeParts()
    )

    places = {offset: token for offset, token in zip(lists.text_offset, lists.tokens, strict=True) if token}
    assert places == {10: "a", 11: "🙂", 12: "é", 13: "漢", 14: "!"}


def test_tokens_as_ids_leave_offsets_as_they_are():
    position = {97: Logprob(-0.5, 1, "ab"), 98: Logprob(-1.0, 2, "c")}

    lists = completion_logprobs([97, 97], [position, position], 1, start=0, as_ids=True, parts=LargeParts())
    chat = chat_logprobs([97], [position], 2, as_ids=True, parts=LargeParts()).content[0]

    assert lists.tokens == ["token_id:97"] * 2
    assert (lists.top_logprobs[0], lists.text_offset) == ({"token_id:97": -0.5, "token_id:98": -1.0}, [0, 2])
    assert ([top.token for top in chat.top_logprobs], chat.bytes) == (["token_id:97", "token_id:98"], list(b"ab"))


@pytest.mark.parametrize("tokens_per_step", [1, 5])
async def test_what_comes_behind_a_stop_string_is_trimmed(llm, engine, tokens_per_step):
    engine.tokens_per_step, engine.step_delay_s = tokens_per_step, 0.001
    params = SamplingParams(stop="quick", logprobs=1, max_tokens=500, output_kind=RequestOutputKind.FINAL_ONLY)

    [output] = (await anext(aiter(await llm.add_request("1", "hi", params)))).outputs

    await engine.until(lambda: engine.aborted)
    assert (output.text, output.stop_reason) == ("The ", "quick")
    assert bytes(output.token_ids) == b"The quick"
    assert len(output.logprobs) == 9
    assert output.cumulative_logprob == pytest.approx(-4.5)


def test_a_dropped_position_keeps_its_actual_token():
    rows = LogprobRows([7, *range(2000)], [-0.5, *(-float(i) for i in range(2000))], [8], 2001)
    [position] = positions_of(rows, str)
    position.fill()

    drop_candidates([position, None, {1: Logprob(0.0)}])

    assert dict(position) == {7: Logprob(-0.5, 8, "7")}
