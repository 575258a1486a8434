"""Drafts out of finished outputs: found by later requests of the same tenant alone, within bounded memory."""

from random import Random

import pytest

from tetrad.engine_core_svc.core.speculative_config import read_speculative_config
from tetrad.engine_core_svc.scheduler.drafts.lookup import LookupDrafts
from tetrad.engine_core_svc.scheduler.drafts.past_outputs import PastOutputs
from tetrad.engine_core_svc.scheduler.drafts.proposers import drafts_for
from tetrad.engine_core_svc.scheduler.drafts.suffixes import Suffixes

DEPTH = 4


@pytest.fixture
def past() -> PastOutputs:
    past = PastOutputs(3, DEPTH)
    past.add("a", [9, 9, 1, 2, 3, 4, 5, 6], 4)
    return past


def drafts_of(past: PastOutputs, tenant: str, token_ids: list[int], num_tokens: int = 8) -> list[int]:
    return list(Suffixes(24, 1.0, 0.1, lambda pair: past.find(tenant, pair)).propose(token_ids, num_tokens))


def test_an_output_is_found_behind_its_beginning_and_behind_the_end_of_its_prompt(past):
    assert drafts_of(past, "a", [7, 3, 4]) == [5, 6]
    assert drafts_of(past, "a", [8, 9, 1, 2]) == [3, 4, 5]
    assert drafts_of(past, "a", [8, 9, 9]) == [], "prompts are not proposed"
    assert drafts_of(past, "a", [7, 4, 5]) == [6], "the last token"
    assert drafts_of(past, "a", [3, 4]) == [5, 6], "behind a whole text"


def test_a_single_token_is_no_beginning(past):
    assert drafts_of(past, "a", [3]) == []


def test_the_latest_32_places_of_a_pair_are_kept_in_order():
    past = PastOutputs(100, DEPTH)

    for number in range(40):
        past.add("a", [1, 3, 4, 100 + number, 0], 1)

    assert [text[place] for text, place in past.find("a", (3, 4))] == list(range(108, 140))


def test_a_text_that_ends_does_not_end_a_longer_one(past):
    for text in ([1, 3, 4, 5], [1, 3, 4, 5, 6]):
        past.add("b", text, 1)

    assert drafts_of(past, "b", [7, 3, 4]) == [5, 6]


@pytest.mark.parametrize(("size", "num_kept"), [(8, 8), (9, 0)])
def test_an_output_beyond_the_limit_of_tokens_is_not_kept(size, num_kept):
    past = PastOutputs(3, DEPTH, max_tokens=8)
    past.add("a", range(size), 0)

    assert past.num_tokens == num_kept


def test_no_tenant_finds_the_text_of_another(past):
    past.add("b", [1, 3, 4, 8, 8], 1)

    assert drafts_of(past, "b", [7, 3, 4]) == [8, 8]
    assert drafts_of(past, "a", [7, 3, 4]) == [5, 6]
    assert drafts_of(past, "", [7, 3, 4]) == []


def test_the_longer_match_wins_whether_in_the_own_text_or_in_an_earlier_one(past):
    assert drafts_of(past, "a", [3, 4, 7, 0, 2, 3, 4]) == [5, 6]
    assert drafts_of(past, "a", [0, 2, 3, 4, 7, 8, 0, 2, 3, 4], 2) == [7, 8]


def test_the_oldest_outputs_go_first_and_leave_nothing_in_the_index(past):
    for first in (20, 30, 40):
        past.add("b", range(first, first + 6), 2)

    assert drafts_of(past, "a", [7, 3, 4]) == []
    assert past._places.keys() == {"b"}
    assert past.num_tokens == 18


def test_tokens_are_bounded_whatever_is_kept():
    past, random = PastOutputs(1000, DEPTH, max_tokens=100), Random(1)
    for number in range(200):
        past.add(str(number % 3), [random.randrange(9) for _ in range(random.randrange(2, 140))], random.randrange(40))
        assert past.num_tokens <= 100
        kept = {id(text) for _, text in past._kept}
        indexed = [id(text) for index in past._places.values() for places in index.values() for text, _ in places]
        assert set(indexed) <= kept
        assert len(indexed) <= 100


def test_a_request_without_output_is_not_kept():
    past = PastOutputs(3, DEPTH)

    past.add("a", [1, 2, 3], 3)

    assert past.num_tokens == 0


def serve(bench, drafts: LookupDrafts, salt: str, output: list[int]) -> list[list[int]]:
    """Run a request that says `output`; return what was proposed after each of its tokens."""
    request, proposals = bench.add(4, cache_salt=salt, max_tokens=len(output)), []
    drafts.admits(request)
    for token_id in output:
        request.token_ids.append(token_id)
        proposals.append(list(request.draft_state.propose(request.token_ids, 8).draft_ids))
    drafts.note_finished([request])
    return proposals


def test_requests_of_one_salt_draft_from_each_other(make_bench):
    drafts = drafts_for(read_speculative_config({"method": "suffix", "suffix_decoding_max_cached_requests": 10}))
    bench, output = make_bench(), [70, 81, 92, 63, 54, 45]

    first = serve(bench, drafts, "tenant", output)
    other, same = (serve(bench, drafts, salt, output) for salt in ("another", "tenant"))

    assert not any(first)
    assert not any(other)
    assert same[3] == output[4:]


def test_outputs_are_kept_only_if_asked_for(make_bench):
    drafts = drafts_for(read_speculative_config({"method": "suffix"}))
    bench, output = make_bench(), [70, 81, 92, 63, 54, 45]

    serve(bench, drafts, "tenant", output)

    assert not any(serve(bench, drafts, "tenant", output))


def test_results_hand_over_the_requests_that_they_finish(make_bench):
    finished = []

    class Kept(LookupDrafts):
        def note_finished(self, requests):
            finished.extend(request.request_id for request in requests)

    bench = make_bench(drafts=Kept(lambda _: Suffixes(DEPTH, 1.0, 0.1), 4))
    ended, going = bench.add(4, max_tokens=2), bench.add(4, max_tokens=9)
    for _ in range(4):
        bench.step()

    assert finished == [ended.request_id]
    assert not going.status.is_finished


def test_texts_without_a_pair_are_not_kept():
    """They have no place in the index, which is removed with a tenant's last place."""
    past = PastOutputs(2, DEPTH)

    for tenant in ("a", "a", "b", "b", "c"):
        past.add(tenant, [1, 2], 1)

    assert (past.num_tokens, past._places) == (0, {})
