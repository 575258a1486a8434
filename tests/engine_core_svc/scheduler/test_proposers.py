"""The source of a request's drafts: its prediction, the worker, or texts, as the service's options say."""

import pytest

from tetrad.engine_core_svc.core.plan import ModelRunnerOutput
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.core.speculative_config import read_speculative_config
from tetrad.engine_core_svc.scheduler.drafts.measured_step import MeasuredStep
from tetrad.engine_core_svc.scheduler.drafts.proposers import drafts_for

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
MODEL = {"method": "draft_model", "model": "m", "num_speculative_tokens": 3}
SUFFIX = {"method": "suffix"}
REPEATED = [7, 1, 2, 3, 4, 5, 6, 8, 8, 1, 2, 3]
VARIED = [1, 2, 5, 0, 1, 2, 6, 0, 1, 2, 6, 9, 1, 2]


def drafts_with(options):
    """Return the drafts of a service with these options, which knows that a row costs little of a step."""
    drafts = drafts_for(read_speculative_config(options))
    drafts.observe(MeasuredStep(1, 0.005, 0.0, waited=True))
    return drafts


def request_of(drafts, predicted_ids=(), token_ids=(1, 2, 3), key=1):
    request = Request(key, f"r{key}", list(token_ids), len(token_ids), 99, predicted_ids=list(predicted_ids))
    drafts.admits(request)
    return request


def proposed(drafts, *requests, from_worker=None):
    """Return what is proposed after a step of these requests, in which the worker proposed something or nothing."""
    keys = [request.key for request in requests]
    result = ModelRunnerOutput(1, keys, [(5,)] * len(keys), draft_tokens=from_worker or {})
    return {key: list(draft_ids) for key, draft_ids in drafts.propose(list(requests), result).items()}


@pytest.mark.parametrize("options", [{}, NGRAM, SUFFIX, MODEL])
def test_a_prediction_is_proposed_whatever_the_options(options):
    drafts = drafts_with(options)
    request = request_of(drafts, [70, 80, 90], REPEATED)

    assert proposed(drafts, request) == {1: [70, 80, 90]}


def test_a_prediction_is_followed_as_the_output_grows():
    drafts = drafts_with({})
    request = request_of(drafts, [70, 80, 90, 71])
    found = []
    for token_id in (70, 5, 80, 90):
        request.token_ids.append(token_id)
        found.append(proposed(drafts, request).get(1))

    assert found == [[80, 90, 71], None, None, [71]]


def test_a_request_without_a_prediction_gets_drafts_only_by_options():
    drafts = drafts_with({})
    request = request_of(drafts, token_ids=REPEATED)

    assert not drafts.admits(request)
    assert drafts.admits(request_of(drafts, [70]))
    assert proposed(drafts, request) == {}
    assert drafts_with(NGRAM).admits(request)
    assert drafts_with(MODEL).admits(request)


def test_sixteen_tokens_of_a_prediction_are_verified_in_a_step_at_most():
    assert drafts_with({}).max_tokens == 16
    assert [drafts_with(options).max_tokens for options in (NGRAM, SUFFIX, MODEL)] == [3, 24, 3]


@pytest.mark.parametrize("options", [NGRAM, MODEL])
def test_no_more_of_a_prediction_is_verified_than_the_options_allow(options):
    drafts = drafts_with(options)

    assert proposed(drafts, request_of(drafts, [70, 80, 90, 71])) == {1: [70, 80, 90]}


@pytest.mark.parametrize("options", [NGRAM, MODEL])
def test_nothing_is_proposed_for_more_requests_than_the_options_allow(options):
    drafts = drafts_with(options | {"disable_by_batch_size": 2})
    requests = [request_of(drafts, [70, 80, 90], key=key) for key in (1, 2)]

    assert proposed(drafts, requests[0]) == {1: [70, 80, 90]}
    assert proposed(drafts, *requests) == {}


def test_the_worker_proposes_for_requests_without_a_prediction():
    drafts = drafts_with(MODEL)
    requests = [request_of(drafts, [70, 80, 90]), request_of(drafts, key=2)]

    assert proposed(drafts, *requests, from_worker={1: [5, 5], 2: [6, 6]}) == {1: [70, 80, 90], 2: [6, 6]}
    assert proposed(drafts, requests[1], from_worker={2: [6, 6]}) == {2: [6, 6]}


def test_proposals_are_passed_on_from_a_step_that_was_not_measured():
    """Such as that of a prompt, which is the first one."""
    drafts = drafts_for(read_speculative_config(MODEL))

    assert proposed(drafts, request_of(drafts)) == {}
    assert proposed(drafts, request_of(drafts), from_worker={1: [5, 5]}) == {1: [5, 5]}


@pytest.mark.parametrize("options", [{}, NGRAM, SUFFIX])
def test_the_worker_is_not_asked_for_drafts_that_are_found_in_texts(options):
    assert drafts_with(options).num_from_worker(1) == 0


def test_the_worker_is_asked_for_as_many_drafts_as_the_options_allow_for_the_number_of_requests():
    """They are tried after eight steps without drafts."""
    drafts = drafts_with(MODEL | {"num_speculative_tokens_per_batch_size": [[1, 1, 3], [2, 2, 2], [3, 9, 0]]})
    found = []
    for size in (1, 2, 3):
        requests = [request_of(drafts, key=key) for key in range(size)]
        for _ in range(8):
            drafts.observe(MeasuredStep(size, 0.005, 0.0, waited=True))
            proposed(drafts, *requests)
        found.append(drafts.num_from_worker(size))

    assert found == [3, 2, 0]


@pytest.mark.parametrize(
    ("options", "text", "draft_ids"),
    [
        (NGRAM, REPEATED, [4, 5, 6, 8]),
        (SUFFIX, REPEATED, [4, 5, 6]),
        ({"suffix_decoding_max_tree_depth": 2}, REPEATED, [4, 5]),
        ({"suffix_decoding_max_spec_factor": 1.5}, REPEATED, [4, 5, 6, 8]),
        (SUFFIX, VARIED, [6, 9]),
        ({"suffix_decoding_min_token_prob": 0.5}, VARIED, [6]),
    ],
)
def test_texts_are_searched_as_the_options_say(options, text, draft_ids):
    drafts = drafts_with(SUFFIX | options)

    assert list(request_of(drafts, token_ids=text).draft_state.propose(text, 4).draft_ids) == draft_ids
