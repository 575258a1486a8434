"""WorkerLifecycleService: loads a model, allocates its KV cache, warms up, sleeps and wakes up.

Runs on the event loop; the compute thread does the work.
"""

# ruff: noqa: ARG002, N802 - gRPC's names and signatures

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.services.rpc.health import Health
from tetrad.services.rpc.unread_fields import UnreadFields
from tetrad.services.version import CONTRACT_REVISION, SCHEMA_REVISION, VERSION
from tetrad.v1 import types_pb2, worker_pb2, worker_pb2_grpc
from tetrad.worker_svc.api.kv_groups_wire import decode_group, encode_group
from tetrad.worker_svc.api.load_wire import decode_options, encode_model_info
from tetrad.worker_svc.api.loras import LoraLoading
from tetrad.worker_svc.api.weights_wire import decode_update_path, encode_weights
from tetrad.worker_svc.core.device import KvLayout, ModelInfo, Progress
from tetrad.worker_svc.core.ranks import DEFAULT_TIMEOUT_S, GroupPlace, Shard, Stage
from tetrad.worker_svc.worker.collective import CollectiveMethods
from tetrad.worker_svc.worker.compute_thread import ComputeThread
from tetrad.worker_svc.worker.follower import Follower
from tetrad.worker_svc.worker.functions import APPLY_TO_MODEL, CALL_FUNCTION
from tetrad.worker_svc.worker.lost_device import LostDevice
from tetrad.worker_svc.worker.profile_window import ProfileWindow
from tetrad.worker_svc.worker.snapshot import State
from tetrad.worker_svc.worker.worker import Worker

T = TypeVar("T")

_STATES = {
    State.STARTED: worker_pb2.WORKER_STATE_STARTED,
    State.LOADED: worker_pb2.WORKER_STATE_LOADED,
    State.READY: worker_pb2.WORKER_STATE_READY,
    State.SLEEPING: worker_pb2.WORKER_STATE_SLEEPING,
}


_LEAVE_TIMEOUT_S = 0.3
_OWNER = "This worker"
UNREAD_OF_LOAD = UnreadFields(
    worker_pb2.LoadModelRequest,
    (
        "revision",
        "load_format",
        "config_format",
        "kv_connector",
    ),
    owner=_OWNER,
)


class LifecycleServicer(worker_pb2_grpc.WorkerLifecycleServiceServicer):
    """See worker.proto for the order of calls.

    Args:
        worker, compute: the worker and the thread that owns it.
        rank, instance_id, capabilities, logits_processors, max_message_bytes: values of GetInfo's answer.
        profiler, methods: used by StartProfile and CollectiveRpc.
        lost_device: watches functions whose callers have left.
        health: returns the health service, which reports ready after the worker is warm.
    """

    def __init__(
        self,
        worker: Worker,
        compute: ComputeThread,
        *,
        rank: int,
        instance_id: str,
        capabilities: Callable[[], Sequence[types_pb2.Capability]],
        logits_processors: Sequence[str],
        max_message_bytes: int,
        profiler: ProfileWindow,
        methods: CollectiveMethods,
        lost_device: LostDevice,
        health: Callable[[], Health],
    ) -> None:
        self._worker, self._compute, self._rank, self._instance_id = worker, compute, rank, instance_id
        self._capabilities, self._max_message_bytes = capabilities, max_message_bytes
        self._logits_processors = logits_processors
        self._profiler, self._methods, self._health, self._lost_device = profiler, methods, health, lost_device
        self._loras = LoraLoading(worker, compute)
        self._engine_pause: worker_pb2.EnginePause | None = None
        self._group: worker_pb2.WorkerGroup | None = None
        self._has_met = False  # whether the ranks of the group have met
        self._follower: Follower | None = None

    async def GetInfo(
        self, request: worker_pb2.WorkerLifecycleServiceGetInfoRequest, context: Any
    ) -> worker_pb2.WorkerLifecycleServiceGetInfoResponse:
        """Return the worker's state at once, without waiting for the device."""
        seen = self._worker.snapshot()
        return worker_pb2.WorkerLifecycleServiceGetInfoResponse(
            state=_STATES[seen.state],
            device=seen.device,
            rank=self._rank,
            group=self._group,
            version=VERSION,
            schema_revision=SCHEMA_REVISION,
            contract_revision=CONTRACT_REVISION,
            capabilities=self._capabilities(),
            logits_processors=self._logits_processors,
            model=encode_model_info(seen.model, encode_weights(seen)) if seen.model else None,
            num_blocks=seen.layout.num_blocks if seen.layout else 0,
            block_size=seen.layout.block_size if seen.layout else 0,
            num_requests=seen.num_requests,
            instance_id=self._instance_id,
            epoch=seen.epoch,
            engine_pause=self._engine_pause,
            max_message_bytes=self._max_message_bytes,
        )

    async def JoinGroup(self, request: worker_pb2.JoinGroupRequest, context: Any) -> worker_pb2.JoinGroupResponse:
        """Connect to the other ranks; a member runs its leader's orders from then on. Do nothing for the present group."""
        group = request.group
        sizes = (group.tensor_parallel_size, group.pipeline_parallel_size)
        size = sizes[0] * sizes[1]
        _require(size > 0, "group", "must have sizes of at least 1")
        _require(request.rank < size, "rank", f"must be below {size}")
        _require(len(group.addresses) == size, "group.addresses", f"must have {size} entries")
        if group.backend not in ("", "gloo"):
            raise Unsupported(f"group.backend {group.backend[:80]!r}: ranks exchange tensors over gloo.")
        timeout_s = request.timeout_s if request.HasField("timeout_s") else DEFAULT_TIMEOUT_S
        stage, shard = divmod(request.rank, sizes[0])
        place = GroupPlace(
            Shard(shard, sizes[0]),
            group.group_epoch,
            tuple(group.addresses),
            timeout_s,
            Stage(stage, sizes[1]),
            is_wanted=lambda: self._group is group,
        )
        if self._has_met and (request.rank, group) == (self._rank, self._group):
            return worker_pb2.JoinGroupResponse()
        self._has_met = False
        # Also if the ranks do not meet: the worker keeps its place, and an engine core without a group must take it out again.
        self._rank, self._group = request.rank, group
        orders = await self._compute.submit(self._worker.join_group, place)
        if orders is not None:
            self._follower = Follower(orders, self._compute, self._worker.obey)
            self._follower.start()
        self._has_met = self._group is group
        return worker_pb2.JoinGroupResponse()

    async def leave_group(self) -> bool:
        """Leave the group at the end of the process; return whether no thread waits for another rank, or is stuck in a step."""
        self._group = None  # a rank that waits for the others to join does so no longer
        try:
            async with asyncio.timeout(_LEAVE_TIMEOUT_S):
                await self._compute.submit(self._worker.part.leave)
        except TimeoutError:
            return False
        return self._follower is None or await asyncio.to_thread(self._follower.wait_end, _LEAVE_TIMEOUT_S)

    async def LoadModel(
        self, request: worker_pb2.LoadModelRequest, context: Any
    ) -> AsyncIterator[worker_pb2.LoadModelResponse]:
        """Load a model, and report progress."""
        UNREAD_OF_LOAD.refuse(request)

        def load(report: Progress) -> ModelInfo:
            info = self._worker.load_model(request.model, report, **decode_options(request))
            self._worker.weights.name(request.weights.version)
            return info

        loaded = total = 0
        async for item in self._with_progress(load):
            if isinstance(item, tuple):
                loaded, total = item
                yield worker_pb2.LoadModelResponse(loaded_bytes=loaded, total_bytes=total)
            else:
                model = encode_model_info(item, encode_weights(self._worker.snapshot()))
                yield worker_pb2.LoadModelResponse(loaded_bytes=total, total_bytes=total, model=model)

    async def GetKvCacheSpec(
        self, request: worker_pb2.GetKvCacheSpecRequest, context: Any
    ) -> worker_pb2.GetKvCacheSpecResponse:
        """Return the groups of the model's layers."""
        _require(request.block_size > 0, "block_size", "must be at least 1")
        groups = await self._compute.submit(self._worker.kv_groups, request.block_size)
        return worker_pb2.GetKvCacheSpecResponse(groups=map(encode_group, groups))

    async def DetermineAvailableMemory(
        self, request: worker_pb2.DetermineAvailableMemoryRequest, context: Any
    ) -> worker_pb2.DetermineAvailableMemoryResponse:
        """Measure the memory that is available for KV blocks."""
        _require(0 < request.gpu_memory_utilization <= 1, "gpu_memory_utilization", "must be in (0, 1]")
        size = await self._compute.submit(
            self._worker.available_memory,
            request.gpu_memory_utilization,
            request.max_num_batched_tokens,
            request.max_num_encoder_tokens,
        )
        return worker_pb2.DetermineAvailableMemoryResponse(available_bytes=size)

    async def InitializeKvCache(
        self, request: worker_pb2.InitializeKvCacheRequest, context: Any
    ) -> worker_pb2.InitializeKvCacheResponse:
        """Allocate the KV cache."""
        layout = KvLayout(
            num_blocks=request.num_blocks,
            block_size=request.block_size,
            max_model_len=request.max_model_len,
            max_num_seqs=request.max_num_seqs,
            max_num_batched_tokens=request.max_num_batched_tokens,
            num_host_blocks=request.num_host_blocks,
            encoder_cache_size=request.encoder_cache_size,
        )
        for name in KvLayout.__dataclass_fields__.keys() - {"num_host_blocks", "encoder_cache_size"}:
            _require(getattr(layout, name) > 0, name, "must be at least 1")
        size = await self._compute.submit(
            self._worker.initialize_kv_cache, layout, [decode_group(group) for group in request.groups]
        )
        await self._publish_readiness()
        return worker_pb2.InitializeKvCacheResponse(size_bytes=size, num_host_blocks=layout.num_host_blocks)

    async def WarmUp(self, request: worker_pb2.WarmUpRequest, context: Any) -> AsyncIterator[worker_pb2.WarmUpResponse]:
        """Warm up, and report progress; then make the health service report ready."""
        async for item in self._with_progress(self._worker.warm_up):
            if isinstance(item, tuple):
                yield worker_pb2.WarmUpResponse(completed=item[0], total=item[1])
        await self._publish_readiness()

    async def Sleep(
        self, request: worker_pb2.WorkerLifecycleServiceSleepRequest, context: Any
    ) -> worker_pb2.WorkerLifecycleServiceSleepResponse:
        """Free device memory, after the queued steps."""
        await self._compute.submit(self._worker.sleep, request.level)
        await self._publish_readiness()
        return worker_pb2.WorkerLifecycleServiceSleepResponse()

    async def WakeUp(
        self, request: worker_pb2.WorkerLifecycleServiceWakeUpRequest, context: Any
    ) -> worker_pb2.WorkerLifecycleServiceWakeUpResponse:
        """Restore the parts that the tags name."""
        sleeping = await self._compute.submit(self._worker.wake_up, list(request.tags))
        return worker_pb2.WorkerLifecycleServiceWakeUpResponse(sleeping=sleeping)

    async def KeepPause(self, request: worker_pb2.KeepPauseRequest, context: Any) -> worker_pb2.KeepPauseResponse:
        """Store an engine core's pause for GetInfo."""
        self._engine_pause = request.pause
        return worker_pb2.KeepPauseResponse()

    async def UpdateWeights(
        self, request: worker_pb2.WorkerLifecycleServiceUpdateWeightsRequest, context: Any
    ) -> worker_pb2.WorkerLifecycleServiceUpdateWeightsResponse:
        """Check the files of an update beside the steps."""
        path, model = decode_update_path(request.update_info_json), request.model
        digest = await asyncio.to_thread(self._worker.check_weights, path, model.model, **decode_options(model))
        return worker_pb2.WorkerLifecycleServiceUpdateWeightsResponse(files_digest=digest)

    async def FinishWeightUpdate(
        self, request: worker_pb2.WorkerLifecycleServiceFinishWeightUpdateRequest, context: Any
    ) -> worker_pb2.WorkerLifecycleServiceFinishWeightUpdateResponse:
        """Free the weights before an update, and name the present ones."""

        def finish() -> None:
            self._worker.weights.finish()
            self._worker.weights.name(request.weight_version)

        await self._compute.submit(finish)
        return worker_pb2.WorkerLifecycleServiceFinishWeightUpdateResponse()

    async def LoadLora(
        self, request: worker_pb2.WorkerLifecycleServiceLoadLoraRequest, context: Any
    ) -> worker_pb2.WorkerLifecycleServiceLoadLoraResponse:
        """Read an adapter while steps run, and install it between two steps."""
        _require(request.lora.id > 0, "lora.id", "must be at least 1")
        _require(bool(request.lora.path), "lora.path", "must not be empty")
        digest = await self._loras.install(request.lora.id, request.lora.path)
        return worker_pb2.WorkerLifecycleServiceLoadLoraResponse(digest=digest)

    async def UnloadLora(
        self, request: worker_pb2.WorkerLifecycleServiceUnloadLoraRequest, context: Any
    ) -> worker_pb2.WorkerLifecycleServiceUnloadLoraResponse:
        """Remove an adapter, after the queued steps."""
        await self._loras.unload(request.id)
        return worker_pb2.WorkerLifecycleServiceUnloadLoraResponse()

    async def StartProfile(
        self, request: worker_pb2.WorkerLifecycleServiceStartProfileRequest, context: Any
    ) -> worker_pb2.WorkerLifecycleServiceStartProfileResponse:
        """Start to record the compute thread."""
        await self._compute.submit(self._profiler.start, request.prefix, request.delay_iterations, request.max_iterations)
        return worker_pb2.WorkerLifecycleServiceStartProfileResponse()

    async def StopProfile(
        self, request: worker_pb2.WorkerLifecycleServiceStopProfileRequest, context: Any
    ) -> worker_pb2.WorkerLifecycleServiceStopProfileResponse:
        """End the recording, write its trace and return the path."""
        path = await self._compute.submit(self._profiler.stop)
        return worker_pb2.WorkerLifecycleServiceStopProfileResponse(path=str(path))

    async def CollectiveRpc(
        self, request: worker_pb2.WorkerLifecycleServiceCollectiveRpcRequest, context: Any
    ) -> worker_pb2.WorkerLifecycleServiceCollectiveRpcResponse:
        """Call a registered method on the compute thread."""
        calling = self._compute.submit(self._methods.call, request.method, request.args_json, request.kwargs_json)
        try:
            result = await calling
        except asyncio.CancelledError:
            if request.method in (CALL_FUNCTION, APPLY_TO_MODEL):
                self._lost_device.watch_function(self._compute.submit(_do_nothing))
            raise
        return worker_pb2.WorkerLifecycleServiceCollectiveRpcResponse(result_json=result)

    async def _publish_readiness(self) -> None:
        await self._health().set_ready(self._worker.snapshot().state is State.READY)

    async def _with_progress(self, work: Callable[[Progress], T]) -> AsyncIterator[tuple[int, int] | T]:
        """Run `work` on the compute thread; yield its (completed, total) reports as they arrive, then its result."""
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
            future.cancel()  # a cancelled caller leaves no call in the queue of a stuck device


def _require(holds: bool, field: str, rule: str) -> None:
    if not holds:
        raise InvalidRequest(f"{field} {rule}.", field=field)


def _do_nothing() -> None:
    """Do nothing: as a queued call, this ends after all earlier calls have ended."""
