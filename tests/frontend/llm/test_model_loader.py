"""ModelLoader loads and unloads models of a running frontend; other models and their requests do not change."""

import asyncio
import json

import pytest

from tests.frontend import fakes
from tests.frontend.conftest import make_settings, running_frontend
from tests.frontend.llm.second_model import LOAD, OTHER, UNLOAD, completed, entry, listed, loaded
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.services.request_context import NO_CONTEXT, current_context
from tetrad.services.rpc.channel import open_channel
from tetrad.v1 import inference_pb2, inference_pb2_grpc


@pytest.fixture
async def one(serve_frontend):
    """A frontend that serves the model `one`."""
    async with serve_frontend(listen="127.0.0.1:0", served_model_names=("one",), max_logprobs=5) as running:
        yield running


async def load_twice(frontend, second):
    """Load a model that cannot be reached twice: return the load that waits, and the answer to the other one."""
    tasks = {asyncio.create_task(frontend.http.post(LOAD, json=entry(second))) for _ in range(2)}
    [answered], [waiting] = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return waiting, answered.result()


# --- loading ----------------------------------------------------------------------------------------------------------


async def test_a_loaded_model_serves_its_names_and_the_first_one_serves_as_before(one, second):
    text = await loaded(one, second, "other", "second")

    assert text == "Success: model 'other' loaded successfully."
    assert [await completed(one, name) for name in ("other", "second")] == [OTHER[:9]] * 2
    assert [await completed(one, name) for name in ("one", None)] == [fakes.TEXT[:9]] * 2


async def test_a_loaded_model_is_in_every_list(one, second):
    await loaded(one, second)

    tags = (await one.http.get("/api/tags")).json()["models"]
    health = (await one.http.get("/health")).json()
    async with open_channel(one.grpc_address) as channel:
        names = await inference_pb2_grpc.ModelServiceStub(channel).ListModels(inference_pb2.ListModelsRequest())

    assert await listed(one) == ["one", "other"]
    assert [each["name"] for each in tags] == ["one", "other"]
    assert [each.name for each in names.models] == ["one", "other"]
    assert [each["name"] for each in health["dependencies"]] == [
        f"{model}: {service} 0" for model in ("one", "other") for service in ("tokenizer", "engine core")
    ]


async def test_a_loaded_model_has_series_until_it_is_unloaded(one, second):
    await loaded(one, second)
    await completed(one, "other")
    series = 'tetrad:generation_tokens_total{model_name="other"} 9.0'

    with_it = (await one.http.get("/metrics")).text.splitlines()
    await one.http.post(UNLOAD, json={"model": "other"})
    without = (await one.http.get("/metrics")).text

    assert series in with_it
    assert 'model_name="other"' not in without
    assert 'tetrad:generation_tokens_total{model_name="one"} 0.0' in without.splitlines()


async def test_operators_reach_a_loaded_model(one, second, engine):
    await loaded(one, second)

    await one.http.post("/pause", params={"model": "other"})
    await one.http.post("/start_profile")
    await one.http.post("/stop_profile")

    assert [order[0] for order in second[1].orders] == ["pause", "start_profile", "stop_profile"]
    assert [order[0] for order in engine.orders] == ["start_profile", "stop_profile"]


async def test_a_frontend_whose_model_has_no_set_name_lists_the_name_that_its_tokenizer_reports(serve_frontend, second):
    async with serve_frontend() as frontend:
        await loaded(frontend, second)

        unknown = await frontend.http.get("/v1/models/x")

        assert [await completed(frontend, "fake"), await completed(frontend, "other")] == [fakes.TEXT[:9], OTHER[:9]]
        assert unknown.json()["error"]["message"] == "The model `x` does not exist. Models of this server: fake, other."


async def test_followers_of_the_readiness_hear_of_a_loaded_model(one, second):
    """The console's feed sends a snapshot at each change: models that come or go are changes."""

    async def next_topology(lines):
        async for line in lines:
            if line.startswith("data: "):
                return [node["name"] for node in json.loads(line.removeprefix("data: "))["topology"]["tokenizers"]]
        raise AssertionError("the stream has ended")

    async with one.http.stream("GET", "/console/events") as response:
        lines = response.aiter_lines()
        before = await next_topology(lines)
        await loaded(one, second)
        async with asyncio.timeout(60):
            while (after := await next_topology(lines)) == before:
                pass

    assert (before, after) == (["tokenizer 0"], ["one: tokenizer 0", "other: tokenizer 0"])


async def test_the_tasks_of_a_loaded_model_do_not_have_the_id_of_the_call_that_loaded_it(one, second, monkeypatch):
    """They outlive it, and their log lines would have that id for good."""
    contexts, start_within = [], AsyncLLM.start_within

    async def noting(self, timeout_s):
        contexts.append(current_context())
        await start_within(self, timeout_s)

    monkeypatch.setattr(AsyncLLM, "start_within", noting)
    await one.http.post(LOAD, json=entry(second), headers={"X-Request-Id": "load-1"})

    assert contexts == [NO_CONTEXT]


# --- refusals of a load -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("one",), "The name `one` is taken by the model `one`; each model needs names of its own."),
        (("new", "sql"), "The name `sql` is taken by the model `one`; each model needs names of its own."),
    ],
)
async def test_a_taken_name_is_refused_and_nothing_changes(serve_frontend, engine, second, names, message):
    engine.supports_lora = True
    settings = {"served_model_names": ("one",), "lora_modules": ("sql=/sql",), "engine_admin_targets": ()}
    async with serve_frontend(**settings) as frontend:
        refused = await frontend.http.post(LOAD, json=entry(second, *names))

        assert (refused.status_code, refused.json()["error"]["message"]) == (409, message)
        assert refused.json()["error"]["param"] == "served_model_names"
        assert await listed(frontend) == ["one", "sql"]


async def test_of_two_loads_of_a_name_at_the_same_time_one_is_refused(one, second):
    answers = await asyncio.gather(*(one.http.post(LOAD, json=entry(second)) for _ in range(2)))

    assert sorted(answer.status_code for answer in answers) == [200, 409]
    assert await listed(one) == ["one", "other"]
    assert await completed(one, "other") == OTHER[:9]


async def test_a_name_that_is_being_loaded_is_refused(serve_frontend, second):
    await second[1].kill()
    async with serve_frontend(served_model_names=("one",)) as frontend:
        loading, again = await load_twice(frontend, second)
        await second[1].start()

        assert again.status_code == 409
        assert "`other` is being loaded" in again.json()["error"]["message"]
        assert (await loading).status_code == 200


@pytest.mark.parametrize("missing", [0, 1])
async def test_services_that_are_not_reached_in_time_are_named_with_the_limit_and_nothing_changes(
    serve_frontend, second, missing
):
    await second[missing].kill()
    async with serve_frontend(served_model_names=("one",), recovery_timeout_s=0.2) as frontend:
        refused = await frontend.http.post(LOAD, json=entry(second))
        health = (await frontend.http.get("/health")).json()

        message = refused.json()["error"]["message"]
        assert refused.status_code == 503
        assert second[missing].target in message and "0.2 s" in message
        assert [each["name"] for each in health["dependencies"]] == ["tokenizer 0", "engine core 0"]
        assert await listed(frontend) == ["one"]


async def test_a_model_that_failed_to_load_can_be_loaded_later(serve_frontend, second):
    second[0].vocab_size = 10**6
    async with serve_frontend(served_model_names=("one",)) as frontend:
        refused = await frontend.http.post(LOAD, json=entry(second))
        await second[0].kill()
        second[0].vocab_size = fakes.VOCAB_SIZE
        await second[0].start()
        await loaded(frontend, second)

        assert (refused.status_code, "1000000 tokens" in refused.json()["error"]["message"]) == (400, True)
        assert await completed(frontend, "other") == OTHER[:9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tool_call_parser": "x"}, "tool_call_parser: There is no parser 'x'"),
        ({"engine_targets": ["dns:///x"]}, "engine_targets: dns:///x is no address"),
        ({"engine_targets": []}, "engine_targets: Tuple should have at least 1 item"),
        ({"served_model_names": []}, "served_model_names: Tuple should have at least 1 item"),
        ({"max_n": 5}, "max_n: Extra inputs are not permitted"),
    ],
)
async def test_an_invalid_field_is_named(one, second, changes, message):
    refused = await one.http.post(LOAD, json=entry(second) | changes)

    assert (refused.status_code, refused.json()["error"]["message"].startswith(message)) == (400, True), refused.text
    assert await listed(one) == ["one"]


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_both_are_for_operators_alone(serve_frontend, second, path):
    async with serve_frontend(api_key=("user",), operator_api_key=("boss",)) as frontend:
        refused = await frontend.http.post(path, json=entry(second), headers={"authorization": "Bearer user"})
        allowed = await frontend.http.post(LOAD, json=entry(second), headers={"authorization": "Bearer boss"})

    assert (refused.status_code, allowed.status_code) == (401, 200)


@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_frontends_that_share_a_port_refuse_both_and_name_the_setting(serve_frontend, second, sockets, path):
    body = entry(second) if path == LOAD else {"model": "one"}
    async with serve_frontend(peers_dir=sockets / "peers") as frontend:
        refused = await frontend.http.post(path, json=body)

    assert (refused.status_code, "--api-server-count" in refused.json()["error"]["message"]) == (400, True)


async def test_a_load_ends_with_the_frontend(serve_frontend, second):
    await second[1].kill()
    async with serve_frontend(served_model_names=("one",), recovery_timeout_s=600.0) as frontend:
        loading, _ = await load_twice(frontend, second)
        async with asyncio.timeout(60):
            await frontend.stop()

        assert (await loading).json()["error"]["code"] == "draining"


# --- unloading ----------------------------------------------------------------------------------------------------------


async def test_an_unloaded_model_is_unknown_and_in_no_list(one, second):
    await loaded(one, second)

    answer = await one.http.post(UNLOAD, json={"model": "other"})
    refused = await one.http.post("/v1/completions", json={"model": "other", "prompt": "hi"})
    unknown = await one.http.post("/v1/completions", json={"model": "x", "prompt": "hi"})
    health = (await one.http.get("/health")).json()

    assert (answer.status_code, answer.text) == (200, "Success: model 'other' unloaded successfully.")
    assert refused.status_code == unknown.status_code == 404
    assert refused.json()["error"] == unknown.json()["error"] | {"message": "The model `other` does not exist."}
    assert await listed(one) == ["one"]
    assert [each["name"] for each in health["dependencies"]] == ["tokenizer 0", "engine core 0"]
    assert await completed(one, "one") == fakes.TEXT[:9]


async def test_the_connections_of_an_unloaded_model_are_closed(one, second):
    tokenizer, engine = second
    await loaded(one, second)

    await one.http.post(UNLOAD, json={"model": "other"})

    # A server without connections stops before its grace is over.
    async with asyncio.timeout(60):
        await asyncio.gather(tokenizer._server.stop(600), engine._server.stop(600))


async def test_a_model_can_be_loaded_again_under_its_name(one, second):
    for _ in range(3):
        await loaded(one, second)
        assert await completed(one, "other") == OTHER[:9]
        assert (await one.http.post(UNLOAD, json={"model": "other"})).status_code == 200

    assert await listed(one) == ["one"]


async def test_any_of_its_names_unloads_a_model_that_the_settings_list(tokenizer, engine, second):
    settings = make_settings(tokenizer, engine, served_model_names=("one",), further_models=(entry(second, "a", "b"),))
    async with running_frontend(settings) as frontend:
        answer = await frontend.http.post(UNLOAD, json={"model": "b"})

        assert (answer.status_code, await listed(frontend)) == (200, ["one"])


async def test_a_model_of_the_settings_that_was_never_reached_can_be_unloaded(tokenizer, engine, second):
    await second[1].kill()
    settings = make_settings(
        tokenizer, engine, served_model_names=("one",), recovery_timeout_s=0.1, further_models=(entry(second),)
    )
    async with running_frontend(settings) as frontend:
        answer = await frontend.http.post(UNLOAD, json={"model": "other"})
        health = (await frontend.http.get("/health")).json()

        assert (answer.status_code, len(health["dependencies"])) == (200, 2)


@pytest.mark.parametrize(
    ("model", "status", "message"),
    [
        (
            "one",
            400,
            "The model `one` is the first one of this frontend, which serves requests that name no model;",
        ),
        ("x", 404, "The model `x` does not exist. Models of this server: one, other."),
        ("sql", 400, "`sql` is an adapter of the model `other`; /v1/unload_lora_adapter unloads it."),
        ("", 404, "The model `` does not exist. Models of this server: one, other."),
    ],
)
async def test_only_further_models_can_be_unloaded(one, second, model, status, message):
    second[1].supports_lora = True
    await second[1].kill()
    await second[1].start()
    await loaded(one, second, lora_modules=["sql=/sql"], engine_admin_targets=[])

    refused = await one.http.post(UNLOAD, json={"model": model})

    assert (refused.status_code, refused.json()["error"]["param"]) == (status, "model")
    assert refused.json()["error"]["message"].startswith(message)
    assert await listed(one) == ["one", "other", "sql"]
