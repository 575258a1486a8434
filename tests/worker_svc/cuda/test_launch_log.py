"""A request that failed on the device is left out of later steps, and of the results of steps launched meanwhile."""

import numpy as np

from tetrad.worker_svc.cuda.pending import LaunchLog


def test_steps_launched_before_the_failure_was_seen_leave_the_request_out():
    log = LaunchLog()
    first, second = log.note_launch(), log.note_launch()
    handles = np.array([4, 9], np.uint32)
    assert log.are_over(handles, first).tolist() == [False, False]

    log.note_failed([9])

    assert log.are_over(handles, second).tolist() == [False, True]


def test_it_is_taken_once_before_the_next_launch():
    log = LaunchLog()
    log.note_launch()
    log.note_failed([9])

    assert log.take_failed() == (9,)
    assert log.take_failed() == ()


def test_a_handle_that_is_used_again_means_another_request():
    log = LaunchLog()
    log.note_launch()
    meanwhile = log.note_launch()
    log.note_failed([9])
    log.take_failed()
    later = log.note_launch()

    assert log.are_over(np.array([9], np.uint32), meanwhile).tolist() == [True]
    assert log.are_over(np.array([9], np.uint32), later).tolist() == [False]


def test_a_step_has_the_device_from_when_it_is_launched_or_the_one_before_it_ends(monkeypatch):
    now = [10.0]
    monkeypatch.setattr("tetrad.worker_svc.cuda.pending.time.perf_counter", lambda: now[0])
    log = LaunchLog()

    assert log.note_done(started=9.0) == 1.0
    now[0] = 10.5
    assert log.note_done(started=9.25) == 0.5
    now[0] = 13.0
    assert log.note_done(started=12.0) == 1.0
