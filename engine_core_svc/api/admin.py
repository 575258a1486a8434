"""EngineCoreAdminService: the gRPC service for operators and routers."""

import asyncio
import math
import time
from collections.abc import AsyncIterator

import grpc

from tetrad.engine_core_svc.api.kv_events_wire import encode_kv_events
from tetrad.engine_core_svc.api.weights_wire import check_backend, decode_update_path, with_weights
from tetrad.engine_core_svc.api.wire import encode_stats
from tetrad.engine_core_svc.engine.adapters_wire import decode_lora, encode_lora_list
from tetrad.engine_core_svc.engine.engine import Engine
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler.stats import take_stats
from tetrad.services.errors import FailedPrecondition, InvalidRequest, Unavailable
from tetrad.services.observability.profiling import StepProfiler, stop_all
from tetrad.v1 import engine_core_pb2 as pb
from tetrad.v1 import engine_core_pb2_grpc

_DEFAULT_INTERVAL_MS = 100


class EngineCoreAdminServicer(engine_core_pb2_grpc.EngineCoreAdminServiceServicer):
    """Answers calls once `attach` was called, and UNAVAILABLE before. Other methods of the service are UNIMPLEMENTED.

    Args:
        profiler: records profiles of this engine core.
    """

    def __init__(self, profiler: StepProfiler) -> None:
        self._profiler = profiler
        self._attached: tuple[Engine, pb.EngineInfo] | None = None

    def attach(self, engine: Engine, info: pb.EngineInfo) -> None:
        """Start to serve `engine`, whose description is `info`."""
        self._attached = engine, info

    @property
    def _engine(self) -> Engine:
        return self._require()[0]

    def _require(self) -> tuple[Engine, pb.EngineInfo]:
        if self._attached is None:
            raise Unavailable("The engine core is starting.", reason="STARTING", retry_after_s=0.5)
        return self._attached

    async def GetInfo(
        self, request: pb.EngineCoreAdminServiceGetInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.EngineCoreAdminServiceGetInfoResponse:
        """Return the facts of the engine core."""
        engine, info = self._require()
        return pb.EngineCoreAdminServiceGetInfoResponse(info=with_weights(info, engine.weight_updates))

    async def GetLoad(self, request: pb.GetLoadRequest, context: grpc.aio.ServicerContext) -> pb.GetLoadResponse:
        """Return the present load."""
        return pb.GetLoadResponse(load=_load_of(self._engine))

    async def WatchLoad(
        self, request: pb.WatchLoadRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WatchLoadResponse]:
        """Send the load now and whenever it changes, but at most once per requested interval."""
        interval_ms = request.min_interval_ms if request.HasField("min_interval_ms") else _DEFAULT_INTERVAL_MS
        changed = self._engine.observers.observe()
        try:
            while True:
                yield pb.WatchLoadResponse(load=_load_of(self._engine))
                await asyncio.sleep(interval_ms / 1000)
                await changed.wait()
                changed.clear()
        finally:
            self._engine.observers.unobserve(changed)

    async def ResetPrefixCache(
        self, request: pb.ResetPrefixCacheRequest, context: grpc.aio.ServicerContext
    ) -> pb.ResetPrefixCacheResponse:
        """Forget cached prefixes."""
        if not self._engine.reset_prefix_cache(preempt_running=request.reset_running_requests):
            raise FailedPrecondition("KV blocks are in use; set reset_running_requests to preempt what runs.")
        return pb.ResetPrefixCacheResponse(success=True)

    async def ResetEncoderCache(
        self, request: pb.ResetEncoderCacheRequest, context: grpc.aio.ServicerContext
    ) -> pb.ResetEncoderCacheResponse:
        """Forget the embeddings of media."""
        self._engine.reset_encoder_cache()
        return pb.ResetEncoderCacheResponse()

    async def Pause(self, request: pb.PauseRequest, context: grpc.aio.ServicerContext) -> pb.PauseResponse:
        """Pause the engine, and answer when it computes nothing more."""
        self._engine.orders.pause(**_mode_of(request.mode))
        await self._keep_pause()
        if await self._engine.until_held() and request.clear_cache:
            self._engine.reset_prefix_cache(preempt_running=True)
        return pb.PauseResponse()

    async def Resume(self, request: pb.ResumeRequest, context: grpc.aio.ServicerContext) -> pb.ResumeResponse:
        """Resume the engine after a pause."""
        self._engine.orders.resume()
        await self._keep_pause()
        return pb.ResumeResponse()

    async def Sleep(
        self, request: pb.EngineCoreAdminServiceSleepRequest, context: grpc.aio.ServicerContext
    ) -> pb.EngineCoreAdminServiceSleepResponse:
        """Release device memory, and answer when that is done."""
        level = request.level if request.HasField("level") else 1
        await self._engine.orders.sleep(level, **_mode_of(request.mode))
        await self._keep_pause()
        if level == 0:
            await self._engine.until_held()
        return pb.EngineCoreAdminServiceSleepResponse()

    async def WakeUp(
        self, request: pb.EngineCoreAdminServiceWakeUpRequest, context: grpc.aio.ServicerContext
    ) -> pb.EngineCoreAdminServiceWakeUpResponse:
        """Allocate device memory again, and answer when that is done."""
        await self._engine.orders.wake_up(request.tags)
        await self._keep_pause()
        return pb.EngineCoreAdminServiceWakeUpResponse()

    async def _keep_pause(self) -> None:
        """Store the pause in force in the workers, so that the next engine core restores it."""
        await self._engine.workers.keep_pause(self._engine.orders.kept_pause)

    async def IsSleeping(self, request: pb.IsSleepingRequest, context: grpc.aio.ServicerContext) -> pb.IsSleepingResponse:
        """Return whether device memory is released, or planning is paused (level 0)."""
        return pb.IsSleepingResponse(is_sleeping=self._engine.sleeper.is_asleep or self._engine.orders.is_paused)

    async def SubscribeKvEvents(
        self, request: pb.SubscribeKvEventsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.SubscribeKvEventsResponse]:
        """Send the changes of the prefix cache."""
        events = self._engine.kv_events
        async for batch in events.follow(request.start_sequence_number):
            yield encode_kv_events(batch, events.block_size)

    async def InitWeightTransfer(
        self, request: pb.InitWeightTransferRequest, context: grpc.aio.ServicerContext
    ) -> pb.InitWeightTransferResponse:
        """Accept the only way for weights to reach the workers."""
        check_backend(request.init_info_json)
        return pb.InitWeightTransferResponse()

    async def StartWeightUpdate(
        self, request: pb.StartWeightUpdateRequest, context: grpc.aio.ServicerContext
    ) -> pb.StartWeightUpdateResponse:
        """Begin an update of the weights."""
        self._engine.weight_updates.begin()
        return pb.StartWeightUpdateResponse()

    async def UpdateWeights(
        self, request: pb.UpdateWeightsRequest, context: grpc.aio.ServicerContext
    ) -> pb.UpdateWeightsResponse:
        """Check the weights of an update."""
        await self._engine.weight_updates.check(decode_update_path(request.update_info_json))
        return pb.UpdateWeightsResponse()

    async def FinishWeightUpdate(
        self, request: pb.FinishWeightUpdateRequest, context: grpc.aio.ServicerContext
    ) -> pb.FinishWeightUpdateResponse:
        """Apply an update, and answer when requests are computed with the new weights."""
        version = await self._engine.weight_updates.finish(request.weight_version, **_mode_of(request.mode))
        return pb.FinishWeightUpdateResponse(weight_version=version)

    async def UpdateWeightVersion(
        self, request: pb.UpdateWeightVersionRequest, context: grpc.aio.ServicerContext
    ) -> pb.UpdateWeightVersionResponse:
        """Give the present weights another name."""
        await self._engine.weight_updates.name(request.weight_version)
        return pb.UpdateWeightVersionResponse()

    async def StartProfile(
        self, request: pb.EngineCoreAdminServiceStartProfileRequest, context: grpc.aio.ServicerContext
    ) -> pb.EngineCoreAdminServiceStartProfileResponse:
        """Start a profile of this engine core and its workers."""
        self._profiler.start(request.prefix)
        try:
            await self._engine.workers.start_profile(request.prefix, request.delay_iterations, request.max_iterations)
        except BaseException:  # also if the caller has disconnected: the profile would never be stopped
            self._profiler.stop().unlink()
            raise
        return pb.EngineCoreAdminServiceStartProfileResponse()

    async def StopProfile(
        self, request: pb.EngineCoreAdminServiceStopProfileRequest, context: grpc.aio.ServicerContext
    ) -> pb.EngineCoreAdminServiceStopProfileResponse:
        """Stop the profile and return the traces' paths."""
        paths = await stop_all(self._profiler.stop_aside(), self._engine.workers.stop_profile())
        return pb.EngineCoreAdminServiceStopProfileResponse(paths=paths)

    async def LoadLora(
        self, request: pb.EngineCoreAdminServiceLoadLoraRequest, context: grpc.aio.ServicerContext
    ) -> pb.EngineCoreAdminServiceLoadLoraResponse:
        """Load an adapter, and answer when requests can use it."""
        await self._engine.loras.add(decode_lora(request.lora))
        return pb.EngineCoreAdminServiceLoadLoraResponse()

    async def UnloadLora(
        self, request: pb.EngineCoreAdminServiceUnloadLoraRequest, context: grpc.aio.ServicerContext
    ) -> pb.EngineCoreAdminServiceUnloadLoraResponse:
        """Forget an adapter, and free its memory."""
        await self._engine.loras.remove(request.id)
        return pb.EngineCoreAdminServiceUnloadLoraResponse()

    async def ListLoras(self, request: pb.ListLorasRequest, context: grpc.aio.ServicerContext) -> pb.ListLorasResponse:
        """Return the known adapters, or a page of them."""
        after_id = request.after_id if request.HasField("after_id") else None
        return encode_lora_list(self._engine.loras.list_loras(), after_id)

    async def PinLora(
        self, request: pb.EngineCoreAdminServicePinLoraRequest, context: grpc.aio.ServicerContext
    ) -> pb.EngineCoreAdminServicePinLoraResponse:
        """Load an adapter and never evict it."""
        await self._engine.loras.pin(request.id)
        return pb.EngineCoreAdminServicePinLoraResponse()

    async def CollectiveRpc(
        self, request: pb.EngineCoreAdminServiceCollectiveRpcRequest, context: grpc.aio.ServicerContext
    ) -> pb.EngineCoreAdminServiceCollectiveRpcResponse:
        """Call a registered method on every worker."""
        results = await self._engine.workers.collective_rpc(
            request.method, request.args_json, request.kwargs_json, timeout_s=_timeout_of(request)
        )
        return pb.EngineCoreAdminServiceCollectiveRpcResponse(results_json=results)


def _timeout_of(request: pb.EngineCoreAdminServiceCollectiveRpcRequest) -> float | None:
    if not request.HasField("timeout_s"):
        return None
    if not 0 < request.timeout_s < math.inf:
        raise InvalidRequest(f"timeout_s must be above 0 and finite, got {request.timeout_s:g}.", field="timeout_s")
    return request.timeout_s


def _load_of(engine: Engine) -> pb.EngineLoad:
    scheduler = engine.scheduler
    return pb.EngineLoad(
        stats=encode_stats(take_stats(scheduler)),
        num_gpu_blocks=scheduler.kv_cache.pool.num_blocks,
        num_free_blocks=scheduler.kv_cache.pool.num_free,
        num_sessions=len(engine.sessions),
        num_waiting_tokens=scheduler.states.num_waiting_tokens,
        num_output_messages=engine.sessions.num_output_messages,
        paused=engine.orders.is_paused,
        sleeping=engine.sleeper.is_asleep,
        problem=engine.condition.problem,
        workers=[_worker_of(engine, rank) for rank in range(engine.workers.num_ranks)],
        kv_cache=_kv_cache_of(engine.scheduler.kv_cache),
    )


def _kv_cache_of(cache: KVCacheManager) -> pb.KvCacheLoad:
    tier = cache.connector.stats()
    return pb.KvCacheLoad(
        block_size=cache.block_size,
        num_free_cached_blocks=cache.pool.num_free_cached,
        num_blocks_cached=cache.pool.num_cached,
        num_blocks_evicted=cache.pool.num_evicted,
        num_blocks_passed=cache.coordinator.num_passed,
        num_host_blocks=tier.num_blocks,
        num_used_host_blocks=tier.num_used,
        num_blocks_swapped_out=tier.num_saved,
        num_blocks_swapped_in=tier.num_loaded,
        num_host_hits=cache.stats.host_hits,
        groups=[pb.KvGroupInfo(sliding_window=group.sliding_window or 0, is_state=group.is_state) for group in cache.groups],
    )


def _mode_of(mode: pb.PauseMode) -> dict[str, bool]:
    """Return a pause mode as arguments of Orders.pause and Orders.sleep."""
    return {"abort": mode == pb.PAUSE_MODE_ABORT, "finish_running": mode == pb.PAUSE_MODE_WAIT}


def _worker_of(engine: Engine, rank: int) -> pb.WorkerStatus:
    _, facts = engine.workers.require_up()
    since_s = engine.worker_since_s
    connected_s = None if since_s is None else time.monotonic() - since_s
    return pb.WorkerStatus(rank=rank, version=facts.version, device=facts.device, connected_s=connected_s)
