"""Which requests are counted as lost with a crashed engine core, and which are suspects."""

from types import SimpleNamespace

from tetrad.frontend.engine.crash_isolation import LOSSES_TO_FAIL_ALONE, LOSSES_TO_SUSPECT, CrashIsolation


def make(request_id, num_losses=0):
    return SimpleNamespace(request_id=request_id, output_token_ids=[], num_engine_losses=num_losses, num_tokens_at_loss=0)


def test_what_waits_for_a_suspect_is_not_lost_with_it():
    isolation = CrashIsolation()
    suspect, waiting = make("suspect", LOSSES_TO_SUSPECT), make("waiting", LOSSES_TO_SUSPECT)
    failed = []

    while not failed:
        assert isolation.begin([suspect, waiting]) == [suspect]
        failed = isolation.note_loss([suspect, waiting])

    assert failed == [suspect]
    assert suspect.num_engine_losses == LOSSES_TO_FAIL_ALONE
    assert waiting.num_engine_losses == LOSSES_TO_SUSPECT


def test_a_request_that_arrives_while_a_suspect_runs_is_not_lost_with_it():
    isolation = CrashIsolation()
    suspect, late = make("suspect", LOSSES_TO_SUSPECT), make("late")
    isolation.begin([suspect])

    assert isolation.hold(late)
    isolation.note_loss([suspect, late])

    assert (suspect.num_engine_losses, late.num_engine_losses) == (LOSSES_TO_SUSPECT + 1, 0)
