"""Recordings of some steps: they begin after others, and end by themselves."""

from pathlib import Path

import pytest

from tetrad.services.errors import AlreadyExists, FailedPrecondition, NotFound
from tetrad.worker_svc.worker.profile_window import ProfileWindow


class Steps:
    """A Profiler that notes the steps which run during its recording."""

    def __init__(self):
        self.recorded, self.is_on, self.error = [], False, None

    def start(self, prefix):
        if self.error is not None:
            raise self.error
        self.is_on, self.prefix = True, prefix

    def stop(self):
        if not self.is_on:
            raise NotFound("none")
        self.is_on = False
        return Path(f"{self.prefix}.json")


@pytest.fixture
def steps():
    return Steps()


@pytest.fixture
def window(steps):
    return ProfileWindow(steps)


def run(window, steps, numbers):
    for number in numbers:
        window.note_step()
        if steps.is_on:
            steps.recorded.append(number)


@pytest.mark.parametrize(
    ("delay", "most", "recorded"),
    [(0, 0, [1, 2, 3, 4, 5]), (2, 0, [3, 4, 5]), (0, 2, [1, 2]), (1, 3, [2, 3, 4]), (4, 9, [5])],
)
def test_the_steps_of_the_window_are_recorded(window, steps, delay, most, recorded):
    window.start("mine", delay, most)
    run(window, steps, range(1, 6))

    assert steps.recorded == recorded
    assert window.stop() == Path("mine.json")
    with pytest.raises(NotFound):
        window.stop()


def test_there_is_one_recording_until_its_trace_was_asked_for(window, steps):
    window.start("mine", 0, 1)
    run(window, steps, [1, 2])

    with pytest.raises(AlreadyExists):
        window.start("other")
    window.stop()
    window.start("other")

    assert window.stop() == Path("other.json")


def test_a_window_that_did_not_begin_has_no_trace(window, steps):
    window.start("mine", 3)
    run(window, steps, [1])

    with pytest.raises(NotFound, match="had recorded no step: 2 more were to run before it"):
        window.stop()
    window.start("again")


def test_a_recording_that_cannot_begin_fails_no_step(window, steps):
    steps.error = FailedPrecondition("no directory")
    window.start("mine", 1)

    run(window, steps, [1, 2, 3])

    with pytest.raises(FailedPrecondition, match="no directory"):
        window.stop()
