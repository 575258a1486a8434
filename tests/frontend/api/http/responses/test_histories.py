"""Random histories of stored responses: two frontends share a file, one is killed, and all answers fit one order."""

import asyncio
import json
import os
import random
import signal
import sys

import httpx
import pytest

from benchmarks.stack import free_port
from tests.linearizability import Call, Recorder, order_of, told

BODY = {"input": "hi", "max_output_tokens": 3, "background": True}


def response(state, call):
    """One response: unfinished, then final or lost with its frontend; or deleted. How a response ends shows in an answer."""
    completed = ["unfinished", "incomplete"] if state == "unfinished" else [state]
    match call.name:
        case "kill":
            # What it had finished, it had finished; the rest has failed.
            return ["failed", "incomplete"] if state == "unfinished" else [state]
        case "delete":
            after = ["deleted"] if state != "deleted" else []
            expected = "deleted" if after else "not found"
            return ["deleted"] if call.answer in (expected, None) else []
        case "cancel":
            after = [each if each != "unfinished" else "cancelled" for each in completed]
        case _:
            after = completed
    if call.answer is None:
        return after
    if state == "deleted":
        return [state] if call.answer == "not found" else []
    return [each for each in after if call.answer == each]


class Caller:
    """Calls one frontend, at random."""

    def __init__(self, client, histories, rng, called=None, spared=()):
        self._client, self._histories, self._rng, self._spared = client, histories, rng, spared
        self._called = called or asyncio.Semaphore()

    async def run(self, num_calls):
        """Call until there is nothing left to call."""
        for _ in range(num_calls):
            response_id = self._rng.choice(list(self._histories))
            name = "get" if response_id in self._spared else self._rng.choices(["get", "cancel", "delete"], [6, 3, 1])[0]
            try:
                await self._histories[response_id].note(name, response_id, self._answer(name, f"/v1/responses/{response_id}"))
            except httpx.TransportError:
                return  # killed
            self._called.release()

    async def _answer(self, name, url):
        method, path = {"get": ("GET", url), "cancel": ("POST", f"{url}/cancel"), "delete": ("DELETE", url)}[name]
        answer = await self._client.request(method, path)
        if answer.status_code == 404:
            return "not found"
        assert answer.status_code == 200, answer.text
        if name == "delete":
            return "deleted"
        status = answer.json()["status"]
        return "unfinished" if status in ("queued", "in_progress") else status


class Killable:
    """A frontend in a process of its own."""

    def __init__(self, tokenizer, engine, store):
        self.port = free_port()
        fields = {
            "TOKENIZER_TARGETS": json.dumps([tokenizer.target]),
            "ENGINE_TARGETS": json.dumps([engine.target]),
            "RESPONSES_STORE": str(store),
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
        }
        self._environment = os.environ | {f"TETRAD_FRONTEND_{name}": value for name, value in fields.items()}

    async def __aenter__(self):
        command = [sys.executable, "-m", "tetrad.frontend"]
        quiet = asyncio.subprocess.DEVNULL
        self.process = await asyncio.create_subprocess_exec(*command, env=self._environment, stdout=quiet, stderr=quiet)
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=20)
        async with asyncio.timeout(60):
            while not await self._is_ready():
                assert self.process.returncode is None
                await asyncio.sleep(0.05)
        return self

    async def __aexit__(self, *_):
        await self.kill()
        await self.http.aclose()

    async def kill(self):
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
            await self.process.wait()

    async def _is_ready(self):
        try:
            return (await self.http.get("/health")).status_code == 200
        except httpx.TransportError:
            return False


async def create(client, histories, num_responses, **fields):
    for _ in range(num_responses):
        answer = await client.post("/v1/responses", json=BODY | fields)
        assert answer.status_code == 200, answer.text
        histories[answer.json()["id"]] = Recorder()


def check(histories):
    """Check that each response's calls have an order; local orders make one for all."""
    for recorder in histories.values():
        assert order_of(recorder.calls, "unfinished", response) is not None, told(recorder.calls)


@pytest.mark.parametrize("seed", range(3))
async def test_calls_on_two_frontends_have_one_order(serve_frontend, engine, tmp_path, seed):
    rng, histories, store = random.Random(seed), {}, str(tmp_path / "responses.sqlite3")
    async with serve_frontend(responses_store=store) as one, serve_frontend(responses_store=store) as other:
        engine.pause()
        for frontend in (one, other):
            await create(frontend.http, histories, 5)

        callers = [Caller(each.http, histories, rng).run(15) for each in (one, other) for _ in range(3)]
        await asyncio.gather(*callers, _take_steps(engine, rng))

    assert {call.answer for recorder in histories.values() for call in recorder.calls} > {"unfinished", "deleted", "not found"}
    check(histories)


async def test_calls_have_one_order_though_a_frontend_is_killed_between(serve_frontend, tokenizer, engine, tmp_path):
    rng, histories, store = random.Random(0), {}, tmp_path / "responses.sqlite3"
    called = asyncio.Semaphore(0)
    engine.pause()
    async with Killable(tokenizer, engine, store) as killed, serve_frontend(responses_store=str(store)) as other:
        await create(killed.http, histories, 2, max_output_tokens=400)
        spared = tuple(histories)  # these are under way when they are killed
        await create(killed.http, histories, 10, max_output_tokens=1)

        async def kill():
            for _ in range(40):
                await called.acquire()
            # It has an effect on every response: those that were under way have failed.
            dying = asyncio.create_task(killed.kill())
            await asyncio.gather(*(recorder.note("kill", None, _done(dying)) for recorder in histories.values()))

        callers = [Caller(killed.http, histories, rng, called, spared).run(1000) for _ in range(3)]
        callers += [Caller(other.http, histories, rng, called, spared).run(40) for _ in range(3)]
        await asyncio.gather(*callers, kill(), engine.allow(5))
        for response_id, recorder in histories.items():
            await Caller(other.http, {response_id: recorder}, rng, spared=spared).run(1)

    answers = {call.answer for recorder in histories.values() for call in recorder.calls}
    assert answers > {"unfinished", "failed", "not found", None}
    check(histories)


async def _done(task):
    await asyncio.shield(task)
    return "done"


async def _take_steps(engine, rng):
    """Let a few responses end at one time, and the rest at another."""
    for _ in range(20):
        await asyncio.sleep(rng.random() * 0.01)
    await engine.allow(6)
    for _ in range(20):
        await asyncio.sleep(rng.random() * 0.01)
    await engine.allow(None)


@pytest.mark.parametrize(
    ("calls", "has_order"),
    [
        (
            [("get", "unfinished"), ("cancel", "cancelled"), ("get", "cancelled"), ("delete", "deleted"), ("get", "not found")],
            True,
        ),
        ([("get", "unfinished"), ("get", "incomplete"), ("cancel", "incomplete")], True),
        ([("kill", "done"), ("get", "failed"), ("cancel", "failed")], True),
        ([("delete", "deleted"), ("get", "cancelled")], False),
        ([("delete", "deleted"), ("delete", "deleted")], False),
        ([("cancel", "cancelled"), ("get", "incomplete")], False),
        ([("get", "incomplete"), ("get", "unfinished")], False),
        ([("get", "failed")], False),
        ([("get", "incomplete"), ("kill", "done"), ("get", "failed")], False),
        ([("kill", "done"), ("get", "unfinished")], False),
    ],
)
def test_the_model_of_a_response_tells_right_from_wrong(calls, has_order):
    history = [Call(2 * place, 2 * place + 1, name, None, answer) for place, (name, answer) in enumerate(calls)]

    assert (order_of(history, "unfinished", response) is not None) == has_order
