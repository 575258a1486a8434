"""Counts of the drafts of single requests."""

import pytest

from tests.engine_core_svc.scheduler.fake_drafts import SameDrafts
from tetrad.engine_core_svc.api.wire import encode_message
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.draft_metrics import metrics_of_level
from tetrad.engine_core_svc.core.plan import EngineCoreOutput, FinishReason
from tetrad.engine_core_svc.sessions.outbox import StepOutputs

DRAFTS = (56, 9)


def run(make_bench, level, num_steps=3):
    """Run a request whose first verified draft alone is right, and return it."""
    bench = make_bench(drafts=SameDrafts(*DRAFTS), make_draft_metrics=metrics_of_level(level, max_tokens=2))
    bench.next_token = lambda _key, length: 50 + length
    request = bench.add(5)
    for _ in range(num_steps):
        bench.step()
    return request


def test_steps_are_counted_by_their_accepted_drafts(make_bench):
    metrics = run(make_bench, "summary").draft_metrics

    assert (metrics.histogram, metrics.num_draft_tokens, metrics.per_step) == ([1, 1, 0], 4, None)


def test_details_have_each_step(make_bench):
    assert run(make_bench, "detailed").draft_metrics.per_step == [(1, 2), (0, 2)]


def test_requests_are_not_measured_by_default(make_bench):
    assert run(make_bench, "none").draft_metrics is None


def test_the_last_output_alone_has_the_counts(make_bench):
    request = run(make_bench, "detailed")
    going_on, ended = EngineCoreOutput(request, [3]), EngineCoreOutput(request, [3], FinishReason.LENGTH)

    [message] = encode_message(StepOutputs(3, [ended]))[0].outputs.outputs

    found = message.spec_decode_metrics
    assert (found.num_draft_tokens, found.num_accepted_tokens, list(found.histogram)) == (4, 1, [1, 1, 0])
    assert (list(found.per_step_accepted), list(found.per_step_drafted)) == ([1, 0], [2, 2])
    assert not encode_message(StepOutputs(3, [going_on]))[0].outputs.outputs


def test_counts_need_drafts():
    with pytest.raises(ValueError, match="per_request_spec_decode_metrics summary needs a speculative_config"):
        EngineCoreSettings(per_request_spec_decode_metrics="summary")
