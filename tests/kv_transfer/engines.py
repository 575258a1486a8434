"""Engine cores with a real worker each, in the test's event loop, over Unix sockets: they move KV blocks to each other."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc

from tests.engine_core_svc.service_fakes import Client
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.service import serve
from tetrad.services.rpc.channel import open_channel
from tetrad.v1 import engine_core_pb2 as pb
from tetrad.v1 import engine_core_pb2_grpc, types_pb2
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.service import serve as serve_worker

WAIT_S = 20
BLOCK = 16


class Engine:
    """An engine core and its worker."""

    def __init__(
        self, directory: Path, model: Path, role: str, *, worker: Mapping[str, Any] = MappingProxyType({}), **settings
    ) -> None:
        directory.mkdir()
        self._worker_settings = WorkerSettings(
            **{"listen": f"unix:{directory}/worker", "device": "cpu", "threads": 1, "kv_cache_memory_gib": 0.01} | worker
        )
        self._settings = EngineCoreSettings(
            listen=f"unix:{directory}/engine",
            admin_listen=f"unix:{directory}/admin",
            worker_target=self._worker_settings.listen,
            tokenizer_targets=(),
            model=str(model),
            drain_timeout_s=1.0,
            kv_role=role,
            **{"kv_peers": (f"unix:{directory.parent}/*/worker",)} | settings,
        )
        self._running: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}

    def start_worker(self) -> None:
        self._start("worker", serve_worker, self._worker_settings)

    def start_engine(self) -> None:
        self._start("engine", serve, self._settings)

    def _start(self, name: str, run: Callable[..., Coroutine[Any, Any, None]], settings: object) -> None:
        end = asyncio.Event()
        self._running[name] = end, asyncio.create_task(run(settings, end))

    async def stop(self, name: str) -> None:
        """Stop the worker or the engine: its blocks are gone."""
        end, task = self._running.pop(name)
        end.set()
        with contextlib.suppress(Exception):
            await asyncio.wait_for(task, WAIT_S)

    async def until_ended(self) -> None:
        """Wait until the engine core ends by itself; raise its error."""
        await asyncio.wait_for(self._running["engine"][1], WAIT_S)

    async def client(self) -> Client:
        channel = open_channel(self._settings.listen)
        async with asyncio.timeout(WAIT_S):
            while True:
                with contextlib.suppress(grpc.RpcError, AttributeError):
                    return await Client(engine_core_pb2_grpc.EngineCoreServiceStub(channel)).start()
                task = self._running["engine"][1]
                assert not task.done(), task.exception()
                await asyncio.sleep(0.02)

    async def until_all_blocks_are_free(self) -> None:
        async with asyncio.timeout(WAIT_S), open_channel(self._settings.admin_listen) as channel:
            admin = engine_core_pb2_grpc.EngineCoreAdminServiceStub(channel)
            async for message in admin.WatchLoad(pb.WatchLoadRequest(min_interval_ms=1)):
                if message.load.num_free_blocks == message.load.num_gpu_blocks - 1:
                    return

    async def close(self) -> None:
        for name in ("engine", "worker"):
            if name in self._running:
                await self.stop(name)


@contextlib.asynccontextmanager
async def pair(directory: Path, model: Path, **settings) -> AsyncIterator[tuple[Engine, Engine]]:
    """Run a producer and a consumer."""
    engines = [Engine(directory / role, model, role, **settings) for role in ("producer", "consumer")]
    try:
        for engine in engines:
            engine.start_worker()
            engine.start_engine()
        yield engines[0], engines[1]
    finally:
        await asyncio.gather(*(engine.close() for engine in engines))


def params(**fields) -> types_pb2.SamplingParams:
    return types_pb2.SamplingParams(**{"temperature": 0.0, "max_tokens": 12, "ignore_eos": True} | fields)


async def prefill(client: Client, handle: int, prompt: Sequence[int]) -> types_pb2.KvTransferParams:
    """Let a producer compute a prompt; return where its blocks are."""
    keeps = types_pb2.KvTransferParams(do_remote_decode=True)
    client.add(handle, prompt, sampling_params=params(max_tokens=1), kv_transfer=keeps)
    await client.until_finished(handle)
    output = client.finished[handle]
    assert output.HasField("kv_transfer")
    return output.kv_transfer


async def decode(client: Client, handle: int, prompt: Sequence[int], source=None, **fields) -> list[int]:
    """Return a consumer's tokens; with `source`, it reads the prompt's blocks there."""
    client.add(handle, prompt, sampling_params=params(**fields), kv_transfer=source)
    await client.until_finished(handle)
    return client.tokens[handle]


def num_fetched(client: Client, handle: int) -> int:
    """Return the prompt tokens of a request that another engine core has computed."""
    for message in client.messages:
        for output in message.outputs:
            if output.handle == handle and output.HasField("prefill_stats"):
                return output.prefill_stats.num_external_cached_tokens
    raise AssertionError("no prefill_stats")
