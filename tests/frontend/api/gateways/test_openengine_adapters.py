"""openengine.v1.Control: adapters are loaded, listed, unloaded and refused."""

import asyncio

import grpc
import pytest

from tests.frontend.api.gateways.calls import refusal_of
from tetrad.frontend.api.gateways.openengine_control.adapters import LoraAdapters
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.openengine_api import control_pb2, control_pb2_grpc
from tetrad.services.errors import AlreadyExists
from tetrad.services.rpc.channel import open_channel

Lora = control_pb2.LoraAdapter


@pytest.fixture
async def adaptable(serve_frontend, engine):
    """The Control of a server whose adapters may change."""
    engine.supports_lora = True
    async with (
        serve_frontend(listen="127.0.0.1:0", allow_runtime_lora_updating=True) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        yield control_pb2_grpc.ControlStub(channel)


async def load(stub, number, name, path="/adapters/a"):
    return await stub.LoadLora(control_pb2.LoadLoraRequest(adapter=Lora(lora_id=number, lora_name=name, source_path=path)))


async def test_adapters_are_loaded_listed_and_unloaded(adaptable, engine):
    loaded = await load(adaptable, 7, "sql")
    again = await load(adaptable, 7, "sql")
    listed = await adaptable.ListLoras(control_pb2.ListLorasRequest())
    unloaded = await adaptable.UnloadLora(control_pb2.UnloadLoraRequest(lora_name="sql"))

    wanted = Lora(lora_id=7, lora_name="sql", source_path="/adapters/a")
    assert (loaded.adapter, loaded.already_loaded, again.already_loaded) == (wanted, False, True)
    assert (list(listed.adapters), unloaded.adapter) == ([wanted], wanted)
    assert engine.orders == [("load_lora", "sql", 7, "/adapters/a"), ("unload_lora", 7)]
    assert not (await adaptable.ListLoras(control_pb2.ListLorasRequest())).adapters


@pytest.mark.parametrize(
    ("number", "name", "path", "code", "field"),
    [
        (7, "other", "/adapters/a", grpc.StatusCode.ALREADY_EXISTS, "lora_id"),
        (8, "sql", "/adapters/a", grpc.StatusCode.ALREADY_EXISTS, "lora_name"),
        (7, "sql", "/adapters/b", grpc.StatusCode.ALREADY_EXISTS, "lora_name"),
        (8, "fake", "/adapters/b", grpc.StatusCode.ALREADY_EXISTS, "lora_name"),
        (0, "new", "/adapters/b", grpc.StatusCode.INVALID_ARGUMENT, "adapter.lora_id"),
        (2**32, "new", "/adapters/b", grpc.StatusCode.INVALID_ARGUMENT, "adapter.lora_id"),
        (8, "", "/adapters/b", grpc.StatusCode.INVALID_ARGUMENT, "adapter.lora_name"),
        (8, "new", "adapters/b", grpc.StatusCode.INVALID_ARGUMENT, "adapter.source_path"),
    ],
)
async def test_an_adapter_that_conflicts_or_is_wrong_is_refused(adaptable, engine, number, name, path, code, field):
    await load(adaptable, 7, "sql")

    assert await refusal_of(load(adaptable, number, name, path)) == (code, field)
    assert len(engine.orders) == 1


async def test_two_adapters_with_one_name_are_not_loaded_at_the_same_time(connect, engine, monkeypatch):
    """The second call arrives while the engine cores load the first adapter."""
    engine.supports_lora = True
    llm = await connect(allow_runtime_lora_updating=True)
    adapters, loads = LoraAdapters(ModelDirectory.alone(llm)), []
    began, go = asyncio.Event(), asyncio.Event()

    async def load(lora):
        loads.append(lora.lora_int_id)
        began.set()
        await go.wait()

    monkeypatch.setattr(llm.adapters, "load", load)
    messages = [Lora(lora_id=number, lora_name="sql", source_path="/adapters/a") for number in (7, 8)]
    first, second = (asyncio.create_task(adapters.load(message)) for message in messages)
    await began.wait()
    go.set()

    assert await first is False
    with pytest.raises(AlreadyExists):
        await second
    assert loads == [7]


async def test_an_unknown_adapter_cannot_be_unloaded(adaptable):
    call = adaptable.UnloadLora(control_pb2.UnloadLoraRequest(lora_name="x"))

    assert await refusal_of(call) == (grpc.StatusCode.NOT_FOUND, "lora_name")


@pytest.mark.parametrize("settings", [{}, {"allow_runtime_lora_updating": True}], ids=["not allowed", "no adapters"])
async def test_adapters_need_a_server_that_takes_them(serve_frontend, settings):
    async with (
        serve_frontend(listen="127.0.0.1:0", **settings) as frontend,
        open_channel(frontend.grpc_address) as channel,
    ):
        code, _ = await refusal_of(load(control_pb2_grpc.ControlStub(channel), 7, "sql"))

    assert code == grpc.StatusCode.FAILED_PRECONDITION
