"""The loss of a worker: notices, the waiting time of requests, and the search for a culprit."""

import asyncio
from types import SimpleNamespace

import pytest

from tetrad.engine_core_svc.engine import recovery as module
from tetrad.engine_core_svc.engine.condition import Condition
from tetrad.engine_core_svc.engine.recovery import Recovery
from tetrad.engine_core_svc.sessions.outbox import Notice
from tetrad.engine_core_svc.sessions.sessions import Sessions
from tetrad.engine_core_svc.worker.group import Loss
from tetrad.services.errors import ModelError, Unavailable

LOST = Unavailable("It is gone", reason="WORKER_LOST")
GUILTY = [object()]


class Engine:
    """What a Recovery acts on, and what it did."""

    def __init__(self, timeout_s=60.0):
        self.calls, self.given_up = [], []
        self.sessions, self.condition = Sessions(), Condition(lambda: None)
        self.session = self.sessions.open("a")
        scheduler = SimpleNamespace(running=[], requests={}, forget_worker=lambda: self.calls.append("forget worker"))
        suspects = SimpleNamespace(note_loss=lambda: self.calls.append("note loss"), resolve_loss=self._resolve_loss)
        self.recovery = Recovery(
            scheduler, suspects, self.sessions, self.condition, timeout_s=timeout_s, give_up=self.given_up.append
        )

    def _resolve_loss(self, *, crashed, elsewhere):
        self.was_elsewhere = elsewhere
        self.calls.append(f"resolve loss crashed={crashed}")
        return GUILTY

    async def notices(self):
        self.session.outbox.close()
        return [await self.session.outbox.get() for _ in range(len(self.session.outbox))]


class Link:
    """Connects when it has raised its errors."""

    def __init__(self, *errors):
        self.errors = list(errors)

    async def connect(self, on_change):
        if self.errors:
            raise self.errors.pop(0)
        return "executor", on_change


@pytest.fixture
async def engine():
    engine = Engine()
    yield engine
    engine.recovery.close()


@pytest.fixture
def pauses(monkeypatch):
    """The pauses between attempts, none of which is waited for."""
    made, sleep = [], asyncio.sleep
    monkeypatch.setattr(module.asyncio, "sleep", lambda seconds: made.append(seconds) or sleep(0))
    return made


async def test_a_loss_is_told_to_everybody_and_what_ran_is_requeued(engine):
    engine.recovery.lose(Loss(LOST, is_crash=None), "w1")

    assert engine.calls == ["note loss", "forget worker"], "whoever was under way is noted before it is forgotten"
    assert engine.condition.problem == "The worker was lost: It is gone"
    text = "The worker was lost (It is gone); requests go on when it is back."
    assert await engine.notices() == [Notice("WORKER_LOST", text)]


async def test_a_session_that_opens_without_a_worker_is_told(engine):
    """Its frontend would choose this engine core although others have workers."""
    engine.recovery.lose(Loss(LOST, is_crash=None), "w1")

    engine.session = engine.sessions.open("late")
    engine.recovery.notify(engine.session)
    engine.recovery.regain("w2")
    engine.recovery.notify(engine.session)

    assert [notice.kind for notice in await engine.notices()] == ["WORKER_LOST", "RECOVERED"]


@pytest.mark.parametrize(
    ("is_crash", "lost", "found", "crashed"),
    [
        (None, "w1", "w1", False),
        (None, "w1", "w2", True),
        (None, "", "", True),
        (True, "w1", "w1", True),
        (False, "w1", "w2", False),
    ],
    ids=["same instance", "another instance", "instances without ids", "a crash by itself", "no crash by itself"],
)
async def test_the_instance_that_answers_next_says_whether_it_was_a_crash(engine, is_crash, lost, found, crashed):
    engine.recovery.lose(Loss(LOST, is_crash=is_crash), lost)

    to_fail = engine.recovery.regain(found)

    assert engine.calls[-1] == f"resolve loss crashed={crashed}"
    assert to_fail is GUILTY
    assert engine.condition.problem == ""
    assert (await engine.notices())[1:] == [Notice("RECOVERED", "The worker is back; requests are being recomputed.")]


@pytest.mark.parametrize("is_elsewhere", [False, True])
async def test_a_loss_of_another_engines_worker_is_judged_as_such(engine, is_elsewhere):
    engine.recovery.lose(Loss(LOST, is_crash=True, is_elsewhere=is_elsewhere), "w1")

    engine.recovery.regain("w1")

    assert engine.was_elsewhere is is_elsewhere


async def test_the_first_worker_is_no_recovery(engine):
    assert engine.recovery.regain("w1") == []
    assert engine.calls == []
    assert await engine.notices() == []


async def test_a_loss_is_judged_once(engine):
    engine.recovery.lose(Loss(LOST, is_crash=True), "w1")
    engine.recovery.regain("w2")

    assert engine.recovery.regain("w2") == []
    assert engine.calls.count("resolve loss crashed=True") == 1


async def test_a_worker_is_looked_for_until_there_is_one(engine, pauses):
    link = Link(*[Unavailable("not yet")] * 6)
    on_change = object()

    found = await engine.recovery.find_worker(link, on_change)

    assert found == ("executor", on_change)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert engine.condition.problem == "There is no worker: not yet"


async def test_what_cannot_be_mended_by_waiting_ends_the_search(engine, pauses):
    with pytest.raises(ModelError, match="broken"):
        await engine.recovery.find_worker(Link(Unavailable("not yet"), ModelError("broken")), lambda: None)

    assert engine.condition.problem == "There is no worker: not yet"


async def until_given_up(engine):
    async with asyncio.timeout(10):
        while not engine.given_up:  # noqa: ASYNC110 - the callback is not a coroutine's
            await asyncio.sleep(0.001)


async def test_requests_are_given_up_once_when_the_time_is_over():
    engine = Engine(timeout_s=0.01)
    engine.recovery.lose(Loss(LOST, is_crash=None), "w1")
    engine.recovery.check_not_overdue()

    await until_given_up(engine)
    with pytest.raises(Unavailable) as refused:
        engine.recovery.check_not_overdue()
    engine.recovery.lose(Loss(LOST, is_crash=None), "w1")

    [error] = engine.given_up
    assert error.message == "No worker came back within 0.01 s (The worker was lost: It is gone)."
    assert (error.retry_after_s, refused.value.message) == (0.01, error.message)
    assert engine.recovery._expiry is None, "the time is not counted again"


async def test_a_worker_that_is_back_ends_the_time_and_the_refusals():
    engine = Engine(timeout_s=0.01)
    engine.recovery.lose(Loss(LOST, is_crash=None), "w1")
    await until_given_up(engine)

    engine.recovery.regain("w2")
    engine.recovery.check_not_overdue()
    engine.given_up.clear()
    engine.recovery.lose(Loss(LOST, is_crash=None), "w2")

    await until_given_up(engine)  # counted anew


async def test_the_time_counts_from_the_first_absence_and_closing_ends_it(engine, pauses):
    engine.recovery.lose(Loss(LOST, is_crash=None), "w1")
    first = engine.recovery._expiry
    await engine.recovery.find_worker(Link(Unavailable("not yet")), lambda: None)
    second = engine.recovery._expiry
    engine.recovery.close()

    assert first is second
    assert first._handle.cancelled()
    engine.recovery.close()
