"""A request that failed on the device is left out of later steps, and of the results of steps launched meanwhile."""

import numpy as np

from tetrad.worker_svc.cuda.pending import LaunchLog


class Forgotten:
    """In the place of the request table: only hears who is set aside."""

    def __init__(self) -> None:
        self.handles: list[int] = []

    def set_aside(self, handle: int) -> None:
        self.handles.append(handle)


def test_steps_launched_before_the_failure_was_seen_leave_the_request_out():
    log, table = LaunchLog(), Forgotten()
    first, second = log.note_launch(), log.note_launch()
    handles = np.array([4, 9], np.uint32)
    assert log.are_over(handles, first).tolist() == [False, False]

    log.note_failed([9])

    assert log.are_over(handles, second).tolist() == [False, True]
    assert table.handles == []


def test_it_is_set_aside_once_before_the_next_launch():
    log, table = LaunchLog(), Forgotten()
    log.note_launch()
    log.note_failed([9])

    log.set_aside(table)
    log.set_aside(table)

    assert table.handles == [9]


def test_a_handle_that_is_used_again_means_another_request():
    log, table = LaunchLog(), Forgotten()
    log.note_launch()
    meanwhile = log.note_launch()
    log.note_failed([9])
    log.set_aside(table)
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
