"""A whole engine core on real gRPC: a fake worker, a fake tokenizer, a client, and all together."""

import asyncio
import contextlib
import hashlib
import io
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc

from tests.engine_core_svc.fake_worker import FakeWorker
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.scheduler.drafting import Drafts
from tetrad.engine_core_svc.service import serve
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.columns import pack_u32, unpack_u32
from tetrad.services.rpc.status import from_status
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import engine_core_pb2 as pb
from tetrad.v1 import (
    engine_core_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
    types_pb2,
    worker_pb2_grpc,
)

WAIT_S = 20


class FakeTokenizer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Serves one tokenizer's files."""

    def __init__(self, tokenizer_json: str) -> None:
        self._tokenizer_json = tokenizer_json
        self.num_fetches = 0

    async def GetInfo(self, request, context):
        return tokenizer_pb2.GetInfoResponse(eos_token_ids=[0, 1])

    async def GetBundle(self, request, context):
        self.num_fetches += 1
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("tokenizer.json", self._tokenizer_json)
        data = buffer.getvalue()
        for start in range(0, len(data), 5000):
            last = start + 5000 >= len(data)
            sha256 = hashlib.sha256(data).hexdigest() if last else ""
            yield tokenizer_pb2.GetBundleResponse(data=data[start : start + 5000], sha256=sha256)


class Client:
    """One frontend's session, and what came of each handle."""

    def __init__(self, stub) -> None:
        self.outbound: asyncio.Queue[pb.SessionRequest | None] = asyncio.Queue()
        self.call = stub.Session(self._requests())
        self.tokens: dict[int, list[int]] = {}
        self.finished: dict[int, pb.EngineCoreOutput] = {}
        self.rejected: dict[str, object] = {}
        self.notices: list[str] = []
        self.notice_texts: list[str] = []
        self.messages: list[pb.EngineCoreOutputs] = []
        self.ready: pb.EngineInfo | None = None

    async def _requests(self) -> AsyncIterator[pb.SessionRequest]:
        while (message := await self.outbound.get()) is not None:
            yield message

    async def start(self, revision: int = SCHEMA_REVISION, **fields: Any) -> "Client":
        hello = pb.SessionHello(client_id="test", schema_revision=revision, **fields)
        self.outbound.put_nowait(pb.SessionRequest(hello=hello))
        first = await asyncio.wait_for(self.call.read(), WAIT_S)
        self.ready = first.ready
        return self

    def add(self, handle, prompt, *, request_id=None, max_tokens=4, **fields):
        params = fields.pop("sampling_params", types_pb2.SamplingParams(max_tokens=max_tokens))
        request = pb.EngineCoreRequest(
            request_id=request_id or f"r{handle}",
            handle=handle,
            prompt_token_ids=pack_u32(prompt),
            sampling_params=params,
            **fields,
        )
        self.outbound.put_nowait(pb.SessionRequest(add=pb.AddRequests(requests=[request])))

    def add_at_once(self, arrivals: dict[int, int]):
        """Add requests in one message: handle -> arrival in nanoseconds."""
        requests = [
            pb.EngineCoreRequest(
                request_id=f"r{handle}",
                handle=handle,
                prompt_token_ids=pack_u32([handle]),
                sampling_params=types_pb2.SamplingParams(max_tokens=4),
                arrival_time_unix_nanos=arrival,
            )
            for handle, arrival in arrivals.items()
        ]
        self.outbound.put_nowait(pb.SessionRequest(add=pb.AddRequests(requests=requests)))

    def abort(self, *request_ids):
        self.outbound.put_nowait(pb.SessionRequest(abort=pb.AbortRequests(request_ids=request_ids)))

    async def read(self) -> None:
        """Take in one message."""
        message = await asyncio.wait_for(self.call.read(), WAIT_S)
        assert isinstance(message, pb.SessionResponse), "the session ended"
        if message.HasField("rejected"):
            self.rejected[message.rejected.request_id] = from_status(message.rejected.status)
        elif message.HasField("notice"):
            self.notice_texts.append(message.notice.text)
            self.notices.append(pb.EngineNoticeKind.Name(message.notice.kind).removeprefix("ENGINE_NOTICE_KIND_"))
        else:
            self._take(message.outputs)

    def _take(self, outputs: pb.EngineCoreOutputs) -> None:
        self.messages.append(outputs)
        decode = outputs.decode
        tokens = iter(unpack_u32(decode.token_ids))
        for handle, count in zip(unpack_u32(decode.handles), unpack_u32(decode.num_tokens), strict=True):
            self.tokens.setdefault(handle, []).extend(next(tokens) for _ in range(count))
        for output in outputs.outputs:
            self.tokens.setdefault(output.handle, []).extend(unpack_u32(output.new_token_ids))
            if output.finish_reason:
                self.finished[output.handle] = output

    async def until_end(self) -> grpc.StatusCode:
        """Read until the session ends; return how."""
        with contextlib.suppress(grpc.RpcError):
            while await asyncio.wait_for(self.call.read(), WAIT_S) is not grpc.aio.EOF:
                pass
        return await self.call.code()

    async def until_finished(self, *handles: int) -> None:
        while not set(handles) <= set(self.finished):
            await self.read()


class Stack:
    """A worker, an engine core, and stubs for both of its services. With `drafts` the engine core proposes some."""

    def __init__(self, directory: Path, tokenizer_json: str | None = None, *, drafts: Drafts | None = None, **settings) -> None:
        self.worker, self._drafts = FakeWorker(), drafts
        self.tokenizer = FakeTokenizer(tokenizer_json) if tokenizer_json is not None else None
        self.shutdown = asyncio.Event()
        self._directory = directory
        self.settings = EngineCoreSettings(
            listen=f"unix:{directory}/engine", admin_listen=f"unix:{directory}/admin",
            tokenizer_targets=(f"unix:{directory}/worker",) if self.tokenizer else (),
            **{"worker_target": f"unix:{directory}/worker", "model": "fake", "drain_timeout_s": 5.0} | settings,
        )  # fmt: skip

    async def __aenter__(self) -> "Stack":
        self._server = grpc.aio.server()
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self.worker, self._server)
        worker_pb2_grpc.add_WorkerLifecycleServiceServicer_to_server(self.worker, self._server)
        if self.tokenizer is not None:
            tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(self.tokenizer, self._server)
        self._server.add_insecure_port(f"unix:{self._directory}/worker")
        await self._server.start()
        self.serving = asyncio.create_task(serve(self.settings, self.shutdown, drafts=self._drafts))
        self.channel = open_channel(self.settings.listen)
        self._admin_channel = open_channel(self.settings.admin_listen)
        self.admin = engine_core_pb2_grpc.EngineCoreAdminServiceStub(self._admin_channel)
        self._stub = engine_core_pb2_grpc.EngineCoreServiceStub(self.channel)
        return self

    async def __aexit__(self, *_) -> None:
        self.worker.go.set()
        self.shutdown.set()
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.serving, WAIT_S)
        await self.channel.close()
        await self._admin_channel.close()
        await self._server.stop(None)

    async def restart_engine_core(self) -> None:
        """End the engine core and start another one in front of the same worker; returns when that takes sessions."""
        self.shutdown.set()
        await asyncio.wait_for(self.serving, WAIT_S)
        await self._serve_anew()

    async def crash_engine_core(self) -> None:
        """Do the same without letting it end anything."""
        self.serving.cancel()
        await asyncio.wait([self.serving], timeout=WAIT_S)
        await self._serve_anew()

    async def _serve_anew(self) -> None:
        self.shutdown = asyncio.Event()
        self.serving = asyncio.create_task(serve(self.settings, self.shutdown, drafts=self._drafts))
        await self.client()

    async def client(self, **hello: Any) -> Client:
        """Open a session; waits while the engine core starts."""
        while True:
            with contextlib.suppress(grpc.RpcError, AttributeError):
                return await Client(self._stub).start(**hello)
            assert not self.serving.done(), self.serving.exception()
            await asyncio.sleep(0.02)

    def raw_client(self) -> Client:
        return Client(self._stub)

    async def load(self) -> pb.EngineLoad:
        return (await self.admin.GetLoad(pb.GetLoadRequest())).load

    async def until_idle(self) -> pb.EngineLoad:
        """Wait until no request is left and all blocks are free."""
        return await self.until_load(
            lambda load: (
                not load.stats.num_running_reqs + load.stats.num_waiting_reqs
                and load.num_free_blocks == load.num_gpu_blocks - 1
            )
        )

    async def until_load(self, holds: Callable[[pb.EngineLoad], bool]) -> pb.EngineLoad:
        """Wait, by watching, until this holds."""
        async with asyncio.timeout(WAIT_S):
            async for message in self.admin.WatchLoad(pb.WatchLoadRequest(min_interval_ms=1)):
                if holds(message.load):
                    return message.load
        raise AssertionError("the watch ended")
