"""A worker on real gRPC that adds one to the last token, with all that a test may make it do wrong."""

import asyncio
from collections.abc import Callable

import grpc
from grpc_status import rpc_status

from tests.engine_core_svc.fake_encoder import FakeEncoder, merged
from tetrad.services.errors import FailedPrecondition, TetradError
from tetrad.services.rpc.columns import pack_u32, split_rows, unpack_u32
from tetrad.services.rpc.status import to_status
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import (
    types_pb2,
    worker_pb2,
    worker_pb2_grpc,
)

VOCAB_SIZE, MAX_LEN = 1000, 256


def batched(values, size):
    """Return the values in rows of `size`."""
    return [values[start : start + size] for start in range(0, len(values), size)] if size else []


class FakeWorker(worker_pb2_grpc.WorkerServiceServicer, worker_pb2_grpc.WorkerLifecycleServiceServicer):
    """Samples last token + 1, or the next one that a mask allows; verifies drafts if it says that it does.

    Clear `go` and it stops answering. `crashed` fails the next step, `step_errors` the next ones; `cut` breaks the stream as a
    lost connection does, and where `holds_after_cut`, the next one waits for `go`; a step with `poison` in a prompt replaces
    the process. `reply` may spoil what it answers, `raw` comes instead of results, `swallow` results never come, `not_ready`
    streams find a worker that has just been replaced. While it `refuses`, nothing can be brought up; `stuck_loads` of the model
    never end. `orders` are those to sleep and to wake up; `sleep_error` is what it answers the first of them.
    """

    def __init__(self) -> None:
        self.go, self.crashed, self.cut = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.step_errors: list[TetradError] = []
        self.holds_after_cut = False
        self.go.set()
        self.encoder = FakeEncoder()
        self.verifies_drafts = self.keeps_states = False
        self.logits_processors: list[str] = []
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
            types_pb2.CAPABILITY_MULTIMODAL: bool(self.encoder.modalities),
        }
        return [capability for capability, is_there in has.items() if is_there]

    async def GetInfo(self, request, context):
        return worker_pb2.WorkerLifecycleServiceGetInfoResponse(
            device="fake",
            instance_id=self.instance_id,
            epoch=self.epoch,
            engine_pause=self.engine_pause,
            capabilities=self.capabilities,
            logits_processors=self.logits_processors,
        )

    async def KeepPause(self, request, context):
        self.engine_pause = request.pause
        return worker_pb2.KeepPauseResponse()

    @property
    def instance_id(self):
        return f"instance {self.num_deaths + self.encoder.num_deaths}"

    async def LoadModel(self, request, context):
        self.num_loads += 1
        self.last_load = request
        if self.refuses:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no worker here")
        if self.stuck_loads:
            self.stuck_loads -= 1
            await asyncio.Event().wait()
        model = worker_pb2.ModelInfo(
            model=request.model, vocab_size=VOCAB_SIZE, max_position_embeddings=MAX_LEN, dtype="float32",
            modalities=self.encoder.modalities, is_encoder_decoder=self.encoder.is_attended,
            supports_transcription=self.encoder.is_attended, encoded_position_bytes=8 * self.encoder.is_attended,
        )  # fmt: skip
        yield worker_pb2.LoadModelResponse(model=model)

    async def GetKvCacheSpec(self, request, context):
        return worker_pb2.GetKvCacheSpecResponse(
            groups=[worker_pb2.KvCacheGroup(block_size_bytes=1024, dtype="int8", kind=self.kv_kind)]
        )

    async def DetermineAvailableMemory(self, request, context):
        self.memory_request = request
        return worker_pb2.DetermineAvailableMemoryResponse(available_bytes=64 * 1024)

    async def InitializeKvCache(self, request, context):
        self.encoder.size = request.encoder_cache_size
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
        self.encoder.forget()
        to_encode = asyncio.Queue()
        async for response in merged(self._answers(request_iterator, context, to_encode), to_encode, self.encoder, context):
            yield response

    async def _answers(self, request_iterator, context, to_encode):
        async for message in request_iterator:
            if message.HasField("encoder_inputs"):
                to_encode.put_nowait(message.encoder_inputs)
                continue
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
            if self.step_errors:
                await context.abort_with_status(rpc_status.to_status(to_status(self.step_errors.pop())))
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
        self.encoder.begin_step(step)
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


def expected(handle, num_tokens):
    """Return what the fake worker makes of a request whose prompt ends with its handle."""
    return list(range(handle + 1, handle + 1 + num_tokens))
