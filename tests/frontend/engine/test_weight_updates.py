"""Updates of the weights of several engine cores, by HTTP: all of them, or none."""

import asyncio

import pytest

from tests.frontend.fakes import FakeEngine
from tetrad.frontend.engine import weights_client
from tetrad.services.errors import FailedPrecondition, ModelError, Unavailable
from tetrad.v1 import engine_core_pb2

PATH = '{"path": "/new"}'
KEEP, ABORT = engine_core_pb2.PAUSE_MODE_KEEP, engine_core_pb2.PAUSE_MODE_ABORT
UPDATE = [("start_weights",), ("check_weights", PATH), ("finish_weights", "v2", KEEP)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(weights_client, "_RETRY_S", 0.01)


@pytest.fixture
async def second(sockets):
    fake = FakeEngine(sockets / "e2", engine_index=1)
    await fake.start()
    yield fake
    await fake.kill()


@pytest.fixture
async def http(serve_frontend, engine, second):
    both = (engine.target, second.target)
    async with serve_frontend(engine_targets=both, engine_admin_targets=both) as frontend:
        yield frontend.http


async def update(http, **fields):
    return await http.post("/update_weights_from_disk", json={"model_path": "/new", "weight_version": "v2"} | fields)


async def test_every_engine_core_updates(http, engine, second):
    answer = await update(http)

    assert answer.json() == {"success": True, "message": "The weights are updated.", "weight_version": "v2"}
    assert engine.orders == second.orders == UPDATE


async def test_updates_that_are_ordered_together_follow_one_another(http, engine, second):
    answers = await asyncio.gather(*(update(http) for _ in range(3)))

    assert [answer.status_code for answer in answers] == [200] * 3
    assert engine.orders == second.orders == UPDATE * 3


async def test_requests_are_ended_if_the_operator_says_so(http, engine):
    await update(http, abort_all_requests=True)

    assert engine.orders[-1] == ("finish_weights", "v2", ABORT)


async def test_no_engine_core_updates_if_one_refuses_the_files(http, engine, second):
    second.refusals["UpdateWeights"] = [ModelError("tensor a has shape (1,), but that of the served model has (2,).")]

    answer = await update(http)

    assert answer.status_code == 409
    assert answer.json()["error"]["message"] == "tensor a has shape (1,), but that of the served model has (2,)."
    assert engine.orders == UPDATE[:2]


async def test_the_others_get_back_what_they_had_if_one_cannot_load_them(http, engine, second):
    second.refusals["FinishWeightUpdate"] = [FailedPrecondition("The disk is broken.")]

    answer = await update(http)

    assert answer.json()["error"]["message"] == "The disk is broken."
    back = [("start_weights",), ("check_weights", '{"path": "fake"}'), ("finish_weights", "", 0), ("name_weights", "")]
    assert engine.orders == [*UPDATE, *back]
    assert second.orders == UPDATE


@pytest.mark.parametrize("method", ["UpdateWeights", "FinishWeightUpdate"])
async def test_an_engine_core_that_was_lost_gets_the_whole_update_again(http, second, method):
    second.refusals[method] = [Unavailable("The worker was lost.")]

    answer = await update(http)

    assert answer.status_code == 200
    assert second.orders[-3:] == UPDATE


async def test_an_engine_core_that_is_lost_at_the_beginning_is_awaited(http, second):
    second.refusals["StartWeightUpdate"] = [Unavailable("The engine core is starting.") for _ in range(3)]

    answer = await update(http)

    assert answer.status_code == 200
    assert second.orders == UPDATE


async def test_a_loss_without_return_is_an_error(http, second, monkeypatch):
    monkeypatch.setattr(weights_client, "_PATIENCE_S", 0.0)
    second.refusals["UpdateWeights"] = [Unavailable("The worker was lost.") for _ in range(9)]

    answer = await update(http)

    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "The worker was lost."


async def test_vllms_calls_are_an_update_in_steps(http, engine):
    answers = [
        await http.post("/init_weight_transfer_engine", json={"init_info": {}}),
        await http.post("/start_weight_update"),
        await http.post("/update_weights", json={"update_info": {"path": "/new"}}),
        await http.post("/finish_weight_update", json={"weight_version": "v2"}),
        await http.post("/update_weight_version", json={"new_version": "v3"}),
    ]

    assert [answer.status_code for answer in answers] == [200] * 5
    assert engine.orders == [("init_weights", "{}"), *UPDATE, ("name_weights", "v3")]


async def test_an_update_may_be_finished_without_a_body(http, engine):
    await begin(http, "/new")

    assert (await http.post("/finish_weight_update")).status_code == 200
    assert engine.orders[-1] == ("finish_weights", "", KEEP)


async def begin(http, path):
    await http.post("/start_weight_update")
    await http.post("/update_weights", json={"update_info": {"path": path}})


async def test_a_frontend_finishes_the_update_that_others_have_begun(http, serve_frontend, engine, second):
    """Also if an engine core is lost meanwhile: an older update that this frontend began and did not finish is not repeated."""
    await begin(http, "/old")
    both = (engine.target, second.target)
    async with serve_frontend(engine_targets=both, engine_admin_targets=both) as other:
        await begin(other.http, "/new")
    second.refusals["FinishWeightUpdate"] = [Unavailable("The worker was lost.")]

    answer = await http.post("/finish_weight_update", json={"weight_version": "v2"})

    assert answer.status_code == 200
    assert second.orders[-3:] == UPDATE


async def test_an_engine_core_that_was_started_again_since_the_check_gets_the_whole_update(http, engine, second):
    await begin(http, "/new")
    second.checked_weights_path = ""

    answer = await http.post("/finish_weight_update", json={"weight_version": "v2"})

    assert answer.status_code == 200
    assert engine.orders == UPDATE
    assert second.orders == [*UPDATE[:2], *UPDATE]


async def test_updates_that_meet_are_refused(http, engine, second):
    await begin(http, "/new")
    second.checked_weights_path = "/other"

    answer = await http.post("/finish_weight_update", json={"weight_version": "v2"})

    assert answer.status_code == 409
    assert "Several updates of the weights were ordered at the same time (/new, /other)" in answer.text
    assert engine.orders == second.orders == UPDATE[:2]


async def test_there_must_be_weights_to_apply(http, engine):
    answer = await http.post("/finish_weight_update")

    assert answer.status_code == 409
    assert "There are no weights to apply" in answer.text
    assert engine.orders == []


async def test_weight_info_names_the_weights_of_each_engine_core(http):
    weights = {"weight_version": "default", "weights_path": ""}

    assert (await http.get("/weight_info")).json() == {"weight_version": "default", "engines": [weights, weights]}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("update_weights_from_disk", {}, "'model_path' needs to be provided"),
        ("update_weights_from_disk", {"model_path": "/new", "flush_cache": False}, "flush_cache"),
        ("update_weights_from_disk", {"model_path": "/new", "keep_pause": True}, "keep_pause"),
        ("update_weights_from_disk", {"model_path": "/new", "weight_version": "x" * 300}, "may have 256 characters, got 300"),
        ("update_weights", {"update_info": [{"path": "/new"}]}, "update_info"),
        ("update_weights", {}, "update_info"),
    ],
)
async def test_fields_that_mean_nothing_here_are_refused(http, engine, path, body, message):
    answer = await http.post(f"/{path}", json=body)

    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert ("finish_weights", "", KEEP) not in engine.orders
