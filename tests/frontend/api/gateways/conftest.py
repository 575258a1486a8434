"""Fixtures: a channel to a frontend on fakes, as a gateway has one, and a stub on it."""

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2_grpc

from tests.frontend.fakes import FakeEngine, running_engine
from tetrad.openengine_api import control_pb2_grpc, inference_pb2_grpc
from tetrad.services.rpc.channel import open_channel


@pytest.fixture
async def channel(frontend):
    async with open_channel(frontend.grpc_address) as opened:
        yield opened


@pytest.fixture
def vllm_engine(channel):
    """vllm.grpc.engine's VllmEngine of that frontend."""
    return vllm_engine_pb2_grpc.VllmEngineStub(channel)


@pytest.fixture
def inference(channel):
    """OpenEngine's Inference of that frontend."""
    return inference_pb2_grpc.InferenceStub(channel)


@pytest.fixture
def control(channel):
    """OpenEngine's Control of that frontend."""
    return control_pb2_grpc.ControlStub(channel)


@pytest.fixture
async def rank_1_and_0(engine, sockets, carrier, serve_frontend):
    """Two engine cores whose ranks are not their places, and a channel to their frontend: [of rank 1, of rank 0], channel."""
    engine.engine_index = 1
    async with running_engine(FakeEngine(sockets / "e2"), carrier) as other:
        targets = (engine.target, other.target)
        settings = {"engine_targets": targets, "engine_admin_targets": targets, "prefix_affinity": 0.0}
        async with serve_frontend(listen="127.0.0.1:0", **settings) as frontend, open_channel(frontend.grpc_address) as opened:
            yield [engine, other], opened
