"""A client of the worker over gRPC in the place of the engine core, and its messages."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.services.rpc.status import from_rpc_error
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import types_pb2, worker_pb2, worker_pb2_grpc
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.service import WorkerServer

GREEDY = types_pb2.SamplingParams(temperature=0.0)


class Client:
    def __init__(self, channel, served):
        self.channel, self.served = channel, served
        self.life = worker_pb2_grpc.WorkerLifecycleServiceStub(channel)
        self.work = worker_pb2_grpc.WorkerServiceStub(channel)

    async def load(self, path, **options):
        return [message async for message in self.life.LoadModel(worker_pb2.LoadModelRequest(model=str(path), **options))]

    async def initialize(self, **changes):
        limits = {"num_blocks": 50, "block_size": 16, "max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 256}
        return await self.life.InitializeKvCache(worker_pb2.InitializeKvCacheRequest(**{**limits, **changes}))

    async def get_ready(self, path):
        await self.load(path)
        await self.initialize()
        return [message async for message in self.life.WarmUp(worker_pb2.WarmUpRequest())]

    async def info(self):
        return await self.life.GetInfo(worker_pb2.WorkerLifecycleServiceGetInfoRequest())

    async def open_stream(self, schema_revision=SCHEMA_REVISION, epoch=1):
        stream = self.work.Execute()
        hello = worker_pb2.ExecuteHello(schema_revision=schema_revision, epoch=epoch)
        await stream.write(worker_pb2.ExecuteRequest(hello=hello))
        first = await stream.read()
        assert first.ready.schema_revision == SCHEMA_REVISION
        return stream


@asynccontextmanager
async def connect(tmp_path, **settings):
    listen, profiles = f"unix:{tmp_path}/worker.sock", str(tmp_path / "profiles")
    served = await WorkerServer.start(WorkerSettings(**{"listen": listen, "threads": 1, "profile_dir": profiles, **settings}))
    try:
        async with open_channel(served.server.address) as channel:
            yield Client(channel, served)
    finally:
        await served.stop()


def new(handle, ids, block, scheduled=None, **fields):
    return worker_pb2.NewRequestData(
        handle=handle,
        request_id=str(handle),
        token_ids=pack_u32(ids),
        num_prompt_tokens=len(ids),
        num_scheduled_tokens=scheduled or len(ids),
        block_ids=[pack_u32([block])],
        sampling_params=fields.pop("sampling_params", GREEDY),
        **fields,
    )


def step(step_id, *, new_requests=(), cached=(), removed=()):
    """`cached` holds (handle, num_computed_tokens) of decodes."""
    handles, computed = [row[0] for row in cached], [row[1] for row in cached]
    return worker_pb2.ExecuteRequest(
        step=worker_pb2.SchedulerOutput(
            step_id=step_id,
            new_requests=new_requests,
            cached_requests=worker_pb2.CachedRequestData(
                handles=pack_u32(handles),
                num_scheduled_tokens=pack_u32([1] * len(handles)),
                num_computed_tokens=pack_u32(computed),
            ),
            removed_handles=pack_u32(removed),
        )
    )


async def read_tokens(stream):
    output = (await asyncio.wait_for(stream.read(), 10)).output
    return output.step_id, dict(zip(unpack_u32(output.handles), unpack_u32(output.token_ids), strict=True))


async def error_of(call):
    with pytest.raises(grpc.RpcError) as error:
        await call
    return from_rpc_error(error.value)
