"""Lookup drafts: the tokens that n-grams and suffixes propose, their acceptance probability, and the number worth a step's
time.
"""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.core.speculative_config import read_speculative_config
from tetrad.engine_core_svc.scheduler.drafts.acceptance import Acceptance, Prior
from tetrad.engine_core_svc.scheduler.drafts.judgement import Proposal, may_pay, worthwhile
from tetrad.engine_core_svc.scheduler.drafts.lookup import LookupDrafts
from tetrad.engine_core_svc.scheduler.drafts.measured_step import MeasuredStep
from tetrad.engine_core_svc.scheduler.drafts.ngrams import Ngrams
from tetrad.engine_core_svc.scheduler.drafts.places import Places
from tetrad.engine_core_svc.scheduler.drafts.prediction import Prediction
from tetrad.engine_core_svc.scheduler.drafts.proposers import drafts_for
from tetrad.engine_core_svc.scheduler.drafts.step_prices import Gap, StepPrices
from tetrad.engine_core_svc.scheduler.drafts.suffixes import Suffixes

TEXT = [1, 2, 3, 4, 9, 2, 3, 5, 9, 1, 2, 3]


@pytest.mark.parametrize(
    ("shortest", "longest", "found"),
    [(2, 2, [4, 9, 2]), (1, 3, [4, 9, 2]), (2, 3, [4, 9, 2]), (4, 4, [])],
    ids=["the first place", "the longest match", "the longest match above the least length", "none is that long"],
)
def test_the_tokens_behind_an_earlier_n_gram_are_proposed(shortest, longest, found):
    assert list(Ngrams(shortest, longest).propose(TEXT, 3)) == found


def test_the_longest_match_wins_over_the_first():
    assert list(Ngrams(1, 3).propose([3, 7, 8, 1, 2, 3, 6, 1, 2, 3], 2)) == [6, 1]
    assert list(Ngrams(1, 1).propose([3, 7, 8, 1, 2, 3, 6, 1, 2, 3], 2)) == [7, 8]


def naive_ngrams(tokens, shortest, longest, num_tokens):
    """As vLLM describes it: the longest of the last n-grams with an earlier place, and of its places the first."""
    for size in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for place in range(size, len(tokens)):
            if tokens[place - size : place] == tokens[len(tokens) - size :]:
                return tokens[place : place + num_tokens]
    return []


@given(
    tokens=st.lists(st.integers(0, 2), max_size=30),
    cut=st.integers(0, 30),
    lengths=st.tuples(st.integers(1, 3), st.integers(0, 3)),
)
def test_n_grams_of_a_growing_text_are_those_of_a_search(tokens, cut, lengths):
    shortest, longest = lengths[0], sum(lengths)
    ngrams = Ngrams(shortest, longest)
    ngrams.propose(tokens[:cut], 4)

    assert list(ngrams.propose(tokens, 4)) == naive_ngrams(tokens, shortest, longest, 4)


def test_a_suffix_proposes_what_followed_most_often():
    text = [1, 2, 5, 0, 1, 2, 6, 0, 1, 2, 6, 9, 1, 2]

    assert list(Suffixes(24, 1.0, 0.1).propose(text, 8)) == [6, 9]
    assert list(Suffixes(24, 4.0, 0.5).propose(text, 8)) == [6]


@pytest.mark.parametrize(("min_probability", "draft_ids"), [(0.5, [6]), (0.51, [])])
def test_of_equally_frequent_tokens_the_latest_is_proposed_if_it_followed_often_enough(min_probability, draft_ids):
    text = [9, 1, 2, 5, 8, 1, 2, 6, 7, 1, 2]

    assert list(Suffixes(24, 0.5, min_probability).propose(text, 8)) == draft_ids


def test_places_of_a_growing_text_are_found_once_each():
    places, text = Places(2), [1, 2, 3, 1, 2]

    assert [list(places.find(text)), list(places.find([*text, 9, 1, 2]))] == [[2], [2, 5]]


def test_matches_are_as_long_as_the_equal_tokens_before_a_place():
    assert Places(1).match_length([5, 3, 6, 3], 2, 3) == 1
    assert Places(1).match_length([5, 3, 6, 5, 3], 2, 3) == 2
    assert Places(1).match_length([5, 3, 6, 5, 3], 2, 1) == 1


def test_a_prediction_follows_each_token_once():
    prediction = Prediction([70, 80, 90], 3)

    assert prediction.propose([1, 2, 3], 2) == [70, 80]
    assert prediction.propose([1, 2, 3, 70], 2) == [80, 90]


def test_a_longer_match_allows_more_drafts():
    text = [7, 1, 2, 3, 4, 5, 6, 8, 8, 1, 2, 3]

    assert list(Suffixes(24, 1.0, 0.1).propose(text, 8)) == [4, 5, 6]
    assert list(Suffixes(2, 1.0, 0.1).propose(text, 8)) == [4, 5]
    assert list(Suffixes(2, float("inf"), 0.1).propose(text, 3)) == [4, 5, 6], "no limit"


def test_acceptance_follows_what_comes_whether_a_step_verified_it_or_not():
    acceptance = Acceptance(Prior())
    tokens = [0]
    for right in (True, False):
        found = []
        for _ in range(30):
            acceptance.expect(len(tokens), [5, 5])
            tokens += [5, 5] if right else [6]
            acceptance.compare(tokens)
            found.append(acceptance.probability)
        assert sorted(found, reverse=not right) == found
        assert (found[-1] > 0.9) is right


def test_acceptance_is_the_share_of_right_tokens_among_those_compared():
    """What all requests have shown counts as two tokens, of which 60 % are right; a wrong token ends a comparison."""
    acceptance = Acceptance(Prior())
    assert acceptance.probability == pytest.approx(0.6)

    acceptance.expect(0, [5, 5, 5, 5])
    acceptance.compare([5, 5, 6, 5])
    prior = 0.6 + 0.02 * 3 * (2 / 3 - 0.6)
    assert acceptance.probability == pytest.approx((2 + 2 * prior) / (3 + 2))

    acceptance.expect(4, [7, 7])
    acceptance.compare([5, 5, 6, 5, 7])
    prior += 0.02 * (1 - prior)
    assert acceptance.probability == pytest.approx((0.95 * 2 + 1 + 2 * prior) / (0.95 * 3 + 1 + 2))


def test_prices_separate_a_steps_base_from_its_rows():
    prices = StepPrices()
    for rows in (1, 4, 9) * 10:
        prices.observe(rows, 0.005 + 0.001 * rows)

    assert prices.row_s == pytest.approx(0.001)
    assert prices.step_s(20) == pytest.approx(0.025)


def test_one_slow_step_hardly_counts():
    prices = StepPrices()
    for _ in range(20):
        prices.observe(1, 0.005)
    prices.observe(1, 5.0)

    assert prices.step_s(1) < 0.006


def test_a_gap_follows_what_is_measured_and_one_long_one_hardly_counts():
    gap = Gap()
    gap.observe(0.01)
    assert gap.seconds == 0.01

    for _ in range(40):
        gap.observe(0.002)
    assert gap.seconds == pytest.approx(0.002, rel=0.01)

    gap.observe(5.0)
    assert gap.seconds == pytest.approx(0.0024, rel=0.01)
    gap.observe(-1.0)
    assert gap.seconds == pytest.approx(0.0019, rel=0.02)


def test_a_gap_between_steps_that_overlap_is_negative_until_they_do_not():
    gap = Gap()
    for _ in range(40):
        gap.observe(-0.01)
    assert gap.seconds == pytest.approx(-0.01)

    for _ in range(60):
        gap.observe(0.002)
    assert gap.seconds == pytest.approx(0.002, rel=0.01)


def test_a_request_begins_with_what_all_have_shown():
    prior = Prior()
    for _ in range(100):
        prior.note(1, 4)

    assert Acceptance(prior).probability == prior.probability == pytest.approx(0.25, abs=0.1)


def test_one_comparison_of_many_tokens_replaces_what_was_known_at_most():
    prior = Prior()

    prior.note(75, 100)

    assert prior.probability == pytest.approx(0.75)


def priced(base_s, row_s, gap_s=0.0):
    prices = StepPrices()
    for rows in (1, 2, 8, 33) * 10:
        prices.observe(rows, base_s + row_s * rows)
    prices.waiting_gap.observe(gap_s)
    return prices


def test_more_is_drafted_the_surer_it_is():
    prices = priced(0.005, 0.0007)

    sizes = [len(worthwhile({1: Proposal([5] * 16, p)}, 1, prices).get(1, ())) for p in (0.1, 0.5, 0.8, 0.95, 1.0)]

    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (0, 16)
    assert 0 < sizes[1] < sizes[3]


def test_nothing_is_drafted_where_rows_cost_what_tokens_do():
    prices = priced(0.0001, 0.001)

    assert not may_pay(prices, 32)
    assert worthwhile({key: Proposal([5] * 4, 0.97) for key in range(32)}, 32, prices) == {}


@pytest.mark.parametrize(("base_s", "pays"), [(0.00025, False), (0.0004, True)])
def test_drafts_must_pay_for_all_their_rows(base_s, pays):
    """Two requests with two sure drafts each: 6 tokens take 1.1 times as long as 2 of a plain step if that has 0.32 ms more."""
    proposals = {key: Proposal([5] * 2, 1.0) for key in (1, 2)}

    assert bool(worthwhile(proposals, 2, priced(base_s, 0.001))) is pays


def test_drafts_of_few_requests_must_pay_for_the_wait_of_all():
    prices = priced(0.005, 0.0001, gap_s=0.002)
    proposal = Proposal([5] * 2, 0.9)

    assert worthwhile({1: proposal}, 1, prices)
    assert worthwhile({1: proposal}, 40, prices) == {}


def test_drafts_in_a_pipeline_must_pay_for_the_steps_that_do_not_overlap():
    """Of two stages, one computes the next step meanwhile; a step with drafts is alone."""
    prices = priced(0.02, 0.0001)
    half_right, right = ({1: Proposal([5] * 4, probability)} for probability in (0.5, 0.95))
    assert worthwhile(half_right, 1, prices)

    prices.ahead_gap.observe(-0.01)

    assert worthwhile(half_right, 1, prices) == {}
    assert worthwhile(right, 1, prices)


@pytest.mark.parametrize("overlap_s", [0.0051, 0.02])
def test_nothing_is_drafted_while_the_estimates_of_plain_steps_are_not_credible(overlap_s):
    prices = priced(0.005, 0.0001)
    prices.ahead_gap.observe(-overlap_s)

    assert not may_pay(prices, 1)
    assert worthwhile({1: Proposal([5], 0.9)}, 1, prices) == {}


def test_drafts_end_on_a_text_that_does_not_repeat(make_bench):
    """Chance matches are proposed, turn out wrong, and are no longer worth a step."""
    drafts = drafts_for(read_speculative_config({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 1}))
    bench = make_bench(drafts=drafts)
    bench.takes_s = lambda scheduled: 0.005 + 0.001 * sum(scheduled)
    bench.next_token = lambda _key, length: 50 + Random(length).randrange(11)
    bench.add(5, max_tokens=200)
    bench.run(depth=2)

    stats = bench.scheduler.drafting.stats
    assert stats.num_draft_tokens < 40


def test_drafts_go_on_while_a_text_repeats(make_bench):
    drafts = drafts_for(read_speculative_config({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2}))
    bench = make_bench(drafts=drafts)
    bench.takes_s = lambda scheduled: 0.005 + 0.001 * sum(scheduled)
    bench.next_token = lambda _key, length: 50 + length % 7
    request = bench.add(5, max_tokens=200)
    bench.run(depth=2)

    stats = bench.scheduler.drafting.stats
    assert request.num_output_tokens == 200
    assert stats.num_accepted_tokens > 120
    assert stats.num_accepted_by_place[0] >= stats.num_accepted_by_place[-1] > 0
    assert sum(stats.num_accepted_by_place) == stats.num_accepted_tokens


def repeating_request(drafts):
    """Return a request whose text repeats, so that its next four tokens are proposed."""
    request = Request(1, "r1", [1, 2, 3, 4] * 3, 12, 99)
    drafts.admits(request)
    return request


@pytest.mark.parametrize(
    ("gap_s", "waited", "is_drafted"), [(0.0, True, True), (None, True, True), (0.1, True, False), (0.1, False, True)]
)
def test_nothing_is_drafted_where_only_plans_that_wait_for_results_have_long_gaps(gap_s, waited, is_drafted):
    drafts = drafts_for(read_speculative_config({"method": "ngram", "num_speculative_tokens": 4}))
    request = repeating_request(drafts)

    drafts.observe(MeasuredStep(1, 0.005, gap_s, waited=waited))

    assert bool(drafts.propose([request], None)) is is_drafted


def test_nothing_is_searched_where_no_draft_can_pay():
    """Rows cost all of a step's time, so a sure draft saves nothing."""
    searched = []

    class Proposer:
        def propose(self, token_ids, num_tokens):
            searched.append(num_tokens)
            return [1] * num_tokens

    drafts = LookupDrafts(lambda _: Proposer(), 4)
    request = repeating_request(drafts)
    for rows in (1, 2, 8, 33) * 40:
        drafts.observe(MeasuredStep(rows, 0.001 * rows, 0.0, waited=True))

    assert drafts.propose([request], None) == {}
    assert searched == []


def test_no_step_is_judged_before_one_was_measured():
    drafts = drafts_for(read_speculative_config({"method": "ngram", "num_speculative_tokens": 4}))
    request = repeating_request(drafts)

    assert drafts.propose([request], None) == {}
    drafts.observe(MeasuredStep(1, 0.005, 0.001, waited=True))
    assert drafts.propose([request], None) == {1: [1, 2, 3, 4]}


def test_a_gap_alone_shows_no_price_of_a_step():
    prices = StepPrices()
    prices.ahead_gap.observe(0.01)

    assert prices.step_s(1) == 0.0
    assert not may_pay(prices, 1)
