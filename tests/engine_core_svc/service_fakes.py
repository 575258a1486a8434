"""A whole engine core on real gRPC: a worker that adds one to the last token, a tokenizer, a client, and all together."""

import asyncio
import contextlib
import hashlib
import io
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
from grpc_status import rpc_status

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.scheduler.drafting import Drafts
from tetrad.engine_core_svc.service import serve
from tetrad.services.errors import FailedPrecondition, TetradError
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.columns import pack_u32, split_rows, unpack_u32
from tetrad.services.rpc.status import from_status, to_status
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import engine_core_pb2 as pb
from tetrad.v1 import (
    engine_core_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
    types_pb2,
    worker_pb2,
    worker_pb2_grpc,
)

VOCAB_SIZE, MAX_LEN = 1000, 256
WAIT_S = 20


def batched(values, size):
    """Return the values in rows of `size`."""
    return [values[start : start + size] for start in range(0, len(values), size)] if size else []


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer, worker_pb2_grpc.WorkerLifecycleServiceServicer):
    """Samples last token + 1, or the next one that a mask allows; verifies drafts if it says that it does.

    Clear `go` and it stops answering. `crashed` fails the next step; `cut` breaks the stream as a lost connection does, and
    where `holds_after_cut`, the next one waits for `go`; a step with `poison` in a prompt replaces the process. `reply` may
    spoil what it answers, `raw` comes instead of results, `swallow` results never come, `not_ready` streams find a worker that
    has just been replaced. While it `refuses`, nothing can be brought up; `stuck_loads` of the model never end. `orders` are
    those to sleep and to wake up; `sleep_error` is what it answers the first of them.
    """

    def __init__(self) -> None:
        self.go, self.crashed, self.cut = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.holds_after_cut = False
        self.go.set()
        self.verifies_drafts = self.keeps_states = False
        self.poison: int | None = None
        self.reply: Callable[[worker_pb2.ModelRunnerOutput], object] = lambda output: output
        self.raw: list[worker_pb2.ExecuteResponse] = []
        self.swallow = self.stuck_loads = self.not_ready = 0
        self.refuses = False
        self.kv_kind = types_pb2.KV_CACHE_KIND_FULL_ATTENTION
        self.num_deaths = 0
        self.epoch = 0
        self.hello: worker_pb2.ExecuteHello | None = None
        self.batches: list[set[str]] = []
        self.names: dict[int, str] = {}
        self.num_steps = 0
        self.known: dict[int, list[int]] = {}
        self.seen: list[worker_pb2.SchedulerOutput] = []
        self.num_loads = 0
        self.last_load: worker_pb2.LoadModelRequest | None = None
        self.orders: list[object] = []
        self.asleep: set[str] = set()
        self.sleep_error: TetradError | None = None
        self.engine_pause: worker_pb2.EnginePause | None = None

    @property
    def capabilities(self):
        has = {
            types_pb2.CAPABILITY_DRAFT_TOKENS: self.verifies_drafts,
            types_pb2.CAPABILITY_DRAFTS_WITH_STATES: self.keeps_states,
        }
        return [capability for capability, is_there in has.items() if is_there]

    async def GetInfo(self, request, context):
        return worker_pb2.WorkerLifecycleServiceGetInfoResponse(
            device="fake",
            instance_id=self.instance_id,
            epoch=self.epoch,
            engine_pause=self.engine_pause,
            capabilities=self.capabilities,
        )

    async def KeepPause(self, request, context):
        self.engine_pause = request.pause
        return worker_pb2.KeepPauseResponse()

    @property
    def instance_id(self):
        return f"instance {self.num_deaths}"

    async def LoadModel(self, request, context):
        self.num_loads += 1
        self.last_load = request
        if self.refuses:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no worker here")
        if self.stuck_loads:
            self.stuck_loads -= 1
            await asyncio.Event().wait()
        model = worker_pb2.ModelInfo(
            model=request.model, vocab_size=VOCAB_SIZE, max_position_embeddings=MAX_LEN, dtype="float32"
        )
        yield worker_pb2.LoadModelResponse(model=model)

    async def GetKvCacheSpec(self, request, context):
        return worker_pb2.GetKvCacheSpecResponse(
            groups=[worker_pb2.KvCacheGroup(block_size_bytes=1024, dtype="int8", kind=self.kv_kind)]
        )

    async def DetermineAvailableMemory(self, request, context):
        return worker_pb2.DetermineAvailableMemoryResponse(available_bytes=64 * 1024)

    async def InitializeKvCache(self, request, context):
        return worker_pb2.InitializeKvCacheResponse()

    async def WarmUp(self, request, context):
        yield worker_pb2.WarmUpResponse(completed=1, total=1)

    async def CollectiveRpc(self, request, context):
        if request.method == "hang":
            await asyncio.Event().wait()
        return worker_pb2.WorkerLifecycleServiceCollectiveRpcResponse(result_json=request.args_json)

    async def Sleep(self, request, context):
        self.orders.append(request.level)
        if self.sleep_error is not None:
            error, self.sleep_error = self.sleep_error, None
            await context.abort_with_status(rpc_status.to_status(to_status(error)))
        self.asleep = {"weights", "kv_cache"}
        return worker_pb2.WorkerLifecycleServiceSleepResponse()

    async def WakeUp(self, request, context):
        self.orders.append(tuple(request.tags))
        self.asleep -= set(request.tags or self.asleep)
        return worker_pb2.WorkerLifecycleServiceWakeUpResponse(sleeping=bool(self.asleep))

    async def Execute(self, request_iterator, context):
        assert not self.asleep, "a worker that sleeps takes no plans"
        self.known.clear()
        async for message in request_iterator:
            if message.HasField("hello") and self.not_ready:
                self.not_ready -= 1
                error = FailedPrecondition("There is no KV cache.", reason="NOT_READY")
                await context.abort_with_status(rpc_status.to_status(to_status(error)))
            if message.HasField("hello"):
                self.hello = message.hello
                ready = worker_pb2.ExecuteReady(schema_revision=SCHEMA_REVISION, instance_id=self.instance_id)
                if self.verifies_drafts:
                    ready.capabilities.append(types_pb2.CAPABILITY_DRAFT_TOKENS)
                yield worker_pb2.ExecuteResponse(ready=ready)
                continue
            await self.go.wait()
            if self.crashed.is_set():
                self.crashed.clear()
                await context.abort(grpc.StatusCode.INTERNAL, "device lost")
            if self.cut.is_set():
                self.cut.clear()
                if self.holds_after_cut:
                    self.go.clear()
                await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
            if any(self.poison in unpack_u32(new.token_ids) for new in message.step.new_requests):
                self.num_deaths += 1
                self._run(message.step)
                await context.abort(grpc.StatusCode.UNAVAILABLE, "socket closed")
            if self.raw:
                yield self.raw.pop()
            elif self.swallow:
                self.swallow -= 1
                await asyncio.Event().wait()
            else:
                yield worker_pb2.ExecuteResponse(output=self.reply(self._run(message.step)))

    def _run(self, step):
        self.num_steps += 1
        self.seen.append(step)
        for handle in unpack_u32(step.removed_handles):
            self.known.pop(handle, None)
        work = []
        for new in step.new_requests:
            self.known[new.handle] = unpack_u32(new.token_ids)
            self.names[new.handle] = new.request_id
            work.append((new.handle, new.num_computed_tokens + new.num_scheduled_tokens))
        cached = step.cached_requests
        columns = (cached.handles, cached.num_computed_tokens, cached.num_scheduled_tokens)
        work += [(handle, computed + new) for handle, computed, new in zip(*map(unpack_u32, columns), strict=True)]
        self.batches.append({self.names[handle] for handle, _ in work})
        rows = {}
        drafts, masks = self._drafts_of(step), self._masks_of(step)
        for handle, end in work:
            draft_ids = drafts.get(handle, ())
            if end == len(self.known[handle]) + len(draft_ids):
                rows[handle] = self._verify(self.known[handle][-1], draft_ids, masks.get(handle))
                self.known[handle] += rows[handle]
        return worker_pb2.ModelRunnerOutput(
            step_id=step.step_id,
            handles=pack_u32(rows),
            token_ids=pack_u32([token for row in rows.values() for token in row]),
            num_tokens=pack_u32(map(len, rows.values())),
        )

    def _drafts_of(self, step):
        if not step.HasField("draft_tokens"):
            return {}
        assert self.verifies_drafts, "it did not say that it verifies drafts"
        columns = step.draft_tokens
        rows = split_rows(unpack_u32(columns.token_ids), unpack_u32(columns.num_tokens))
        return dict(zip(unpack_u32(columns.handles), rows, strict=True))

    def _masks_of(self, step):
        bitmask, masks = step.grammar_bitmask, {}
        for handle, words in zip(
            unpack_u32(bitmask.handles), batched(unpack_u32(bitmask.bitmask), bitmask.num_words), strict=True
        ):
            masks.setdefault(handle, []).append(words)
        return masks

    def _verify(self, last, draft_ids, masks):
        """Return the drafts up to the first that it would not sample itself, and the token that it samples there."""
        tokens = []
        for place in range(len(draft_ids) + 1):
            token = (last + 1) % VOCAB_SIZE
            while masks is not None and not masks[place][token // 32] >> token % 32 & 1:
                token = (token + 1) % VOCAB_SIZE
            tokens.append(token)
            if place == len(draft_ids) or token != draft_ids[place]:
                break
            last = token
        return tokens


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


def expected(handle, num_tokens):
    """Return what the fake worker makes of a request whose prompt ends with its handle."""
    return list(range(handle + 1, handle + 1 + num_tokens))
