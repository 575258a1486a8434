"""Several models behind one frontend: requests go to the model that they name, and models do not depend on each other."""

import asyncio

import pytest
from pydantic import ValidationError

from tests.frontend import fakes
from tests.frontend.conftest import make_settings, running_frontend
from tests.frontend.llm.second_model import OTHER
from tetrad.frontend.config import FrontendSettings
from tetrad.services.rpc.channel import open_channel
from tetrad.services.settings import child_environment, load_settings
from tetrad.v1 import inference_pb2, inference_pb2_grpc


def further(second, **changes):
    tokenizer, engine = second
    targets = {"tokenizer_targets": (tokenizer.target,), "engine_targets": (engine.target,)}
    return {"served_model_names": ("other", "second"), **targets, "engine_admin_targets": (engine.target,), **changes}


@pytest.fixture
async def both(tokenizer, engine, second):
    settings = make_settings(
        tokenizer, engine, listen="127.0.0.1:0", served_model_names=("one",), further_models=(further(second),)
    )
    async with running_frontend(settings) as running:
        yield running


async def completed(frontend, model):
    body = {"prompt": "hi", "max_tokens": 9} | ({"model": model} if model else {})
    answer = await frontend.http.post("/v1/completions", json=body)
    return answer.json()["model"], answer.json()["choices"][0]["text"]


async def test_a_request_goes_to_the_model_that_it_names_and_to_the_first_without_a_name(both):
    assert await completed(both, "one") == ("one", fakes.TEXT[:9])
    assert await completed(both, None) == ("one", fakes.TEXT[:9])
    assert await completed(both, "other") == ("other", OTHER[:9])
    assert await completed(both, "second") == ("second", OTHER[:9])


async def test_lists_have_the_names_of_all_models_with_their_own_facts(both):
    cards = (await both.http.get("/v1/models")).json()["data"]
    tags = (await both.http.get("/api/tags")).json()["models"]
    card = (await both.http.get("/v1/models/second")).json()

    assert [(each["id"], each["max_model_len"]) for each in cards] == [("one", 512), ("other", 64), ("second", 64)]
    assert [each["name"] for each in tags] == ["one", "other", "second"]
    assert card["max_model_len"] == 64


async def test_an_unknown_model_is_refused_with_the_names_that_there_are(both):
    answer = await both.http.post("/v1/chat/completions", json={"model": "x", "messages": [{"role": "user", "content": "a"}]})

    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "The model `x` does not exist. Models of this server: one, other, second."


async def test_the_grpc_api_reads_the_name_too(both):
    async with open_channel(both.grpc_address) as channel:
        call = inference_pb2_grpc.InferenceServiceStub(channel).Generate(
            inference_pb2.GenerateRequest(model="other", text="hi", sampling_params={"max_tokens": 9})
        )
        text = "".join([answer.text async for answer in call])
        listed = await inference_pb2_grpc.ModelServiceStub(channel).ListModels(inference_pb2.ListModelsRequest())

    assert text == OTHER[:9]
    assert [each.name for each in listed.models] == ["one", "other", "second"]


async def test_the_loss_of_one_models_services_leaves_the_other_serving(both, second):
    await asyncio.gather(*(service.kill() for service in second))

    health = await both.http.get("/health/ready")
    while all(each["ready"] for each in health.json()["dependencies"]):
        health = await both.http.get("/health/ready")
    answer = await completed(both, "one")

    assert (health.status_code, health.json()["status"]) == (200, "ready")
    assert {each["name"] for each in health.json()["dependencies"] if not each["ready"]} <= {
        "other: tokenizer 0",
        "other: engine core 0",
    }
    assert answer == ("one", fakes.TEXT[:9])

    waiting = asyncio.create_task(completed(both, "other"))
    await asyncio.gather(*(service.start() for service in second))

    assert await waiting == ("other", OTHER[:9])


async def test_without_any_model_the_frontend_is_not_ready(both, second, tokenizer, engine):
    await asyncio.gather(*(service.kill() for service in (*second, tokenizer, engine)))

    health = await both.http.get("/health/ready")
    while health.status_code == 200:
        health = await both.http.get("/health/ready")

    assert "one: No " in health.json()["problem"]
    assert "other: No " in health.json()["problem"]


async def test_a_model_that_was_never_reached_does_not_keep_the_other_from_serving(tokenizer, engine, second, sockets):
    absent = {"engine_targets": (f"unix:{sockets}/nobody",), "engine_admin_targets": ()}
    settings = make_settings(
        tokenizer, engine, served_model_names=("one",), recovery_timeout_s=0.1, further_models=(further(second, **absent),)
    )

    async with running_frontend(settings) as frontend:
        refused = await frontend.http.post("/v1/completions", json={"model": "other", "prompt": "hi"})
        answer = await completed(frontend, "one")
        listed = (await frontend.http.get("/v1/models")).json()["data"]

    assert (refused.status_code, "starting" in refused.text) == (503, True)
    assert answer == ("one", fakes.TEXT[:9])
    assert [each["id"] for each in listed] == ["one"]


async def test_series_carry_the_name_of_their_model(both):
    await completed(both, "other")

    lines = (await both.http.get("/metrics")).text.splitlines()

    assert 'tetrad:generation_tokens_total{model_name="one"} 0.0' in lines
    assert 'tetrad:generation_tokens_total{model_name="other"} 9.0' in lines
    assert sum(line.startswith("# HELP tetrad:generation_tokens_total ") for line in lines) == 1


async def test_operators_pause_one_model_or_all(both, engine, second):
    await both.http.post("/pause", params={"model": "other"})
    assert (engine.orders, len(second[1].orders)) == ([], 1)

    await both.http.post("/pause")
    assert (len(engine.orders), len(second[1].orders)) == (1, 2)


MODELS = '[{"served_model_names": "b", "tokenizer_targets": "h:1", "engine_targets": "h:2,h:3"}]'
UNREADABLE = MODELS.replace("}", ', "tool_call_parser": "x"}')


def test_further_models_are_json_on_the_command_line_and_survive_the_way_to_a_child(monkeypatch):
    settings = load_settings(FrontendSettings, ["--served-model-names", "a", "--further-models", MODELS], prog="t")
    for name, value in child_environment(settings).items():
        monkeypatch.setenv(name, value)

    assert load_settings(FrontendSettings, [], prog="t") == settings
    assert [(each.names, each.engine_targets[-1]) for each in settings.each_model()] == [
        (("a",), "127.0.0.1:50052"),
        (("b",), "h:3"),
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"further_models": MODELS}, "further-models needs served-model-names"),
        ({"further_models": MODELS, "served_model_names": "b"}, "two models have the name 'b'"),
        ({"further_models": MODELS, "served_model_names": "a", "lora_modules": "b=/x"}, "two models have the name 'b'"),
        ({"further_models": UNREADABLE, "served_model_names": "a"}, "There is no parser 'x'"),
        ({"further_models": '[{"served_model_names": "b"}]', "served_model_names": "a"}, "Field required"),
        ({"further_models": "b", "served_model_names": "a"}, "must be a JSON list of objects"),
    ],
)
def test_further_models_that_cannot_be_served_are_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        FrontendSettings(**fields)
