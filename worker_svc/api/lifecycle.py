"""WorkerLifecycleService: loads a model, allocates its KV cache, warms up, sleeps and wakes up.

Runs on the event loop; the work is the compute thread's.
"""

# ruff: noqa: ARG002, N802 - gRPC's names and signatures

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.services.health import Health
from tetrad.services.version import SCHEMA_REVISION, VERSION
from tetrad.v1 import worker_pb2, worker_pb2_grpc
from tetrad.worker_svc.core.device import KvLayout, ModelInfo, Progress
from tetrad.worker_svc.worker.collective import CollectiveMethods
from tetrad.worker_svc.worker.compute_thread import ComputeThread
from tetrad.worker_svc.worker.profiler import Profiler
from tetrad.worker_svc.worker.worker import State, Worker

T = TypeVar("T")

_STATES = {
    State.STARTED: worker_pb2.WORKER_STATE_STARTED,
    State.LOADED: worker_pb2.WORKER_STATE_LOADED,
    State.READY: worker_pb2.WORKER_STATE_READY,
    State.SLEEPING: worker_pb2.WORKER_STATE_SLEEPING,
}


class LifecycleServicer(worker_pb2_grpc.WorkerLifecycleServiceServicer):
    """See worker.proto for the order of calls.

    Args:
        worker, compute: the worker and the thread that owns it.
        rank, instance_id, max_message_bytes: for GetInfo.
        profiler, methods: for StartProfile and CollectiveRpc.
        health: reports ready once the worker is warm.
    """

    def __init__(
        self,
        worker: Worker,
        compute: ComputeThread,
        *,
        rank: int,
        instance_id: str,
        max_message_bytes: int,
        profiler: Profiler,
        methods: CollectiveMethods,
        health: Callable[[], Health],
    ) -> None:
        self._worker, self._compute, self._rank, self._instance_id = worker, compute, rank, instance_id
        self._max_message_bytes = max_message_bytes
        self._profiler, self._methods, self._health = profiler, methods, health
        self._engine_pause: worker_pb2.EnginePause | None = None

    async def GetInfo(
        self, request: worker_pb2.WorkerLifecycleServiceGetInfoRequest, context: Any
    ) -> worker_pb2.WorkerLifecycleServiceGetInfoResponse:
        """Answer at once, whatever the device is doing."""
        seen = self._worker.snapshot()
        return worker_pb2.WorkerLifecycleServiceGetInfoResponse(
            state=_STATES[seen.state],
            device=seen.device,
            rank=self._rank,
            version=VERSION,
            schema_revision=SCHEMA_REVISION,
            model=write_model_info(seen.model) if seen.model else None,
            num_blocks=seen.layout.num_blocks if seen.layout else 0,
            block_size=seen.layout.block_size if seen.layout else 0,
            num_requests=seen.num_requests,
            instance_id=self._instance_id,
            epoch=seen.epoch,
            engine_pause=self._engine_pause,
            max_message_bytes=self._max_message_bytes,
        )

    async def LoadModel(
        self, request: worker_pb2.LoadModelRequest, context: Any
    ) -> AsyncIterator[worker_pb2.LoadModelResponse]:
        """Load, with progress."""

        def load(report: Progress) -> ModelInfo:
            return self._worker.load_model(
                request.model,
                report,
                dtype=request.dtype or "auto",
                quantization=request.quantization,
                hf_overrides_json=request.hf_overrides_json,
                random_weights=request.random_weights,
                seed=request.seed,
            )

        loaded = total = 0
        async for item in self._with_progress(load):
            if isinstance(item, tuple):
                loaded, total = item
                yield worker_pb2.LoadModelResponse(loaded_bytes=loaded, total_bytes=total)
            else:
                yield worker_pb2.LoadModelResponse(loaded_bytes=total, total_bytes=total, model=write_model_info(item))

    async def GetKvCacheSpec(
        self, request: worker_pb2.GetKvCacheSpecRequest, context: Any
    ) -> worker_pb2.GetKvCacheSpecResponse:
        """Return the one group that all layers of the llama family share."""
        _require(request.block_size > 0, "block_size", "must be at least 1")
        group = await self._compute.submit(self._worker.kv_group, request.block_size)
        message = worker_pb2.KvCacheGroup(
            layers=range(group.num_layers),
            block_size_bytes=group.block_size_bytes,
            num_kv_heads=group.num_kv_heads,
            head_size=group.head_size,
            dtype=group.dtype,
        )
        return worker_pb2.GetKvCacheSpecResponse(groups=[message])

    async def DetermineAvailableMemory(
        self, request: worker_pb2.DetermineAvailableMemoryRequest, context: Any
    ) -> worker_pb2.DetermineAvailableMemoryResponse:
        """Measure."""
        _require(0 < request.gpu_memory_utilization <= 1, "gpu_memory_utilization", "must be in (0, 1]")
        size = await self._compute.submit(
            self._worker.available_memory, request.gpu_memory_utilization, request.max_num_batched_tokens
        )
        return worker_pb2.DetermineAvailableMemoryResponse(available_bytes=size)

    async def InitializeKvCache(
        self, request: worker_pb2.InitializeKvCacheRequest, context: Any
    ) -> worker_pb2.InitializeKvCacheResponse:
        """Allocate."""
        layout = KvLayout(
            num_blocks=request.num_blocks,
            block_size=request.block_size,
            max_model_len=request.max_model_len,
            max_num_seqs=request.max_num_seqs,
            max_num_batched_tokens=request.max_num_batched_tokens,
            num_host_blocks=request.num_host_blocks,
        )
        for name in KvLayout.__dataclass_fields__.keys() - {"num_host_blocks"}:
            _require(getattr(layout, name) > 0, name, "must be at least 1")
        size = await self._compute.submit(self._worker.initialize_kv_cache, layout)
        await self._publish_readiness()
        return worker_pb2.InitializeKvCacheResponse(size_bytes=size, num_host_blocks=layout.num_host_blocks)

    async def WarmUp(self, request: worker_pb2.WarmUpRequest, context: Any) -> AsyncIterator[worker_pb2.WarmUpResponse]:
        """Warm up, with progress; then the health service reports ready."""
        async for item in self._with_progress(self._worker.warm_up):
            if isinstance(item, tuple):
                yield worker_pb2.WarmUpResponse(completed=item[0], total=item[1])
        await self._publish_readiness()

    async def Sleep(
        self, request: worker_pb2.WorkerLifecycleServiceSleepRequest, context: Any
    ) -> worker_pb2.WorkerLifecycleServiceSleepResponse:
        """Give device memory up, behind the steps that are queued."""
        await self._compute.submit(self._worker.sleep, request.level)
        await self._publish_readiness()
        return worker_pb2.WorkerLifecycleServiceSleepResponse()

    async def WakeUp(
        self, request: worker_pb2.WorkerLifecycleServiceWakeUpRequest, context: Any
    ) -> worker_pb2.WorkerLifecycleServiceWakeUpResponse:
        """Take it again."""
        sleeping = await self._compute.submit(self._worker.wake_up, list(request.tags))
        return worker_pb2.WorkerLifecycleServiceWakeUpResponse(sleeping=sleeping)

    async def KeepPause(self, request: worker_pb2.KeepPauseRequest, context: Any) -> worker_pb2.KeepPauseResponse:
        """Keep it for GetInfo."""
        self._engine_pause = request.pause
        return worker_pb2.KeepPauseResponse()

    async def LoadLora(self, request: worker_pb2.WorkerLifecycleServiceLoadLoraRequest, context: Any) -> Any:
        """Refuse."""
        raise Unsupported("This worker does not support LoRA adapters.")

    async def UnloadLora(self, request: worker_pb2.WorkerLifecycleServiceUnloadLoraRequest, context: Any) -> Any:
        """Refuse."""
        raise Unsupported("This worker does not support LoRA adapters.")

    async def StartProfile(
        self, request: worker_pb2.WorkerLifecycleServiceStartProfileRequest, context: Any
    ) -> worker_pb2.WorkerLifecycleServiceStartProfileResponse:
        """Record the compute thread from here on."""
        await self._compute.submit(self._profiler.start, request.prefix)
        return worker_pb2.WorkerLifecycleServiceStartProfileResponse()

    async def StopProfile(
        self, request: worker_pb2.WorkerLifecycleServiceStopProfileRequest, context: Any
    ) -> worker_pb2.WorkerLifecycleServiceStopProfileResponse:
        """Write the trace and say where it is."""
        path = await self._compute.submit(self._profiler.stop)
        return worker_pb2.WorkerLifecycleServiceStopProfileResponse(path=str(path))

    async def CollectiveRpc(
        self, request: worker_pb2.WorkerLifecycleServiceCollectiveRpcRequest, context: Any
    ) -> worker_pb2.WorkerLifecycleServiceCollectiveRpcResponse:
        """Call a registered method on the compute thread."""
        result = await self._compute.submit(self._methods.call, request.method, request.args_json, request.kwargs_json)
        return worker_pb2.WorkerLifecycleServiceCollectiveRpcResponse(result_json=result)

    async def _publish_readiness(self) -> None:
        await self._health().set_ready(self._worker.snapshot().state is State.READY)

    async def _with_progress(self, work: Callable[[Progress], T]) -> AsyncIterator[tuple[int, int] | T]:
        """Run `work` on the compute thread; yield its (done, total) reports as they come, then its result."""
        loop = asyncio.get_running_loop()
        reports: asyncio.Queue[tuple[int, int] | None] = asyncio.Queue()

        def report(done: int, total: int) -> None:
            loop.call_soon_threadsafe(reports.put_nowait, (done, total))

        future = self._compute.submit(work, report)
        future.add_done_callback(lambda _: reports.put_nowait(None))
        try:
            while (item := await reports.get()) is not None:
                yield item
            yield await future
        finally:
            future.cancel()  # a caller who has given up leaves nothing behind in the queue of a device that is stuck


def write_model_info(info: ModelInfo) -> worker_pb2.ModelInfo:
    """Return the message that describes a loaded model."""
    return worker_pb2.ModelInfo(**{name: getattr(info, name) for name in ModelInfo.__dataclass_fields__})


def _require(holds: bool, field: str, rule: str) -> None:
    if not holds:
        raise InvalidRequest(f"{field} {rule}.", field=field)
