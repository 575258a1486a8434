"""Stop strings: 500 random texts in every chunking give what `str.find` over the whole text gives, and nothing leaks.

A chunk is a token: the text arrives chunk by chunk, as the detokenizer sends it, and is delivered as deltas.
"""

import itertools
import random

import pytest

from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.request.sequence import Sequence

NUM_TEXTS = 500
DELTA = RequestOutputKind.DELTA


def reference(text, stops, include):
    """Return (text, stop): the stop string that is complete first ends the text, the first of the list on ties."""
    found = [(text.find(stop) + len(stop), order) for order, stop in enumerate(stops) if stop in text]
    if not found:
        return text, None
    end, order = min(found)
    return text[: end if include else end - len(stops[order])], stops[order]


def chunkings(text, rng):
    """Yield every way to cut a short text, and some of a longer one: whole, by characters and at random."""
    places = range(1, len(text))
    if len(text) <= 7:
        cuts = [each for number in range(len(text)) for each in itertools.combinations(places, number)]
    else:
        cuts = [(), tuple(places), *(tuple(sorted(rng.sample(places, rng.randrange(1, len(text))))) for _ in range(12))]
    for each in cuts:
        bounds = [0, *each, len(text)]
        yield [text[start:stop] for start, stop in itertools.pairwise(bounds)]


def stream(chunks, **fields):
    """Feed a sequence chunk by chunk until it stops; return it and the deltas it delivered."""
    sequence = Sequence("r", 1, 0, [1], SamplingParams(max_tokens=1000, logprobs=0, **fields), seed=0, max_tokens=1000)
    deltas = []
    for token_id, chunk in enumerate(chunks):
        sequence.add_token_ids([token_id])
        if sequence.add_text(chunk):
            break
        deltas.append(sequence.take_output(DELTA))
    else:
        sequence.finish("length")
    deltas.append(sequence.take_output(DELTA))
    return sequence, [delta for delta in deltas if delta is not None]


@pytest.mark.parametrize("include", [False, True])
def test_every_chunking_gives_the_text_of_str_find(include):
    rng = random.Random(0)
    num_stopped = 0
    for number in range(NUM_TEXTS):
        alphabet = rng.choice(["ab", "abc", "a🙂é", "a\n b"])
        text = "".join(rng.choices(alphabet, k=rng.choice([2, 4, 6, 7, 20, 60])))
        stops = ["".join(rng.choices(alphabet, k=rng.randrange(1, 6))) for _ in range(rng.randrange(1, 5))]
        wanted, stop = reference(text, stops, include)
        num_stopped += stop is not None
        for chunks in chunkings(text, rng):
            sequence, deltas = stream(chunks, stop=stops, include_stop_str_in_output=include)

            assert sequence.text == wanted, (number, chunks, stops)
            assert "".join(delta.text for delta in deltas) == wanted, (number, chunks, stops)
            assert (sequence.stop_reason, sequence.finish_reason) == (stop, "length" if stop is None else "stop")
            assert [i for delta in deltas for i in delta.token_ids] == sequence.output_token_ids
    assert 100 < num_stopped < NUM_TEXTS - 50  # both kinds are many


def test_the_first_complete_wins_not_the_first_begun():
    assert stream(["abcd"], stop=["abcd", "bc"])[0].stop_reason == "bc"


def test_ties_go_to_the_order_of_the_list():
    assert stream(["xabc"], stop=["bc", "abc"])[0].stop_reason == "bc"
    assert stream(["xabc"], stop=["abc", "bc"])[0].stop_reason == "abc"


def test_no_part_of_a_stop_string_is_shown_while_it_may_still_come():
    sequence = Sequence("r", 1, 0, [1], SamplingParams(stop="<end>"), seed=0, max_tokens=9)
    shown = ""
    for chunk in ["Hi", " <", "en", "d", "less", "<e", "nd"]:
        sequence.add_token_ids([0])
        sequence.add_text(chunk)
        output = sequence.take_output(DELTA)
        shown += output.text if output else ""
        assert "Hi <endless".startswith(shown)
    sequence.add_text(">")

    assert shown + sequence.take_output(DELTA).text == "Hi <endless"


def test_a_stop_string_within_min_tokens_ends_nothing():
    chunks = ["a", ".", "b", ".", "c"]

    assert stream(chunks, stop=".", min_tokens=2)[0].text == "a.b"
    assert stream(chunks, stop=".", min_tokens=4)[0].text == "a.b.c"
    assert stream(chunks, stop=".")[0].text == "a"
