"""Worker link: brings a worker up to the point where it takes plans, the first time and after each loss.

Load the model, size and allocate the KV cache, warm up, open the Execute stream. The layout found the first time is kept: block
tables stay meaningful across workers. Knows the lifecycle contract; knows nothing of requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.executor import Executor
from tetrad.engine_core_svc.layout import KVCacheLayout, plan_layout
from tetrad.services.channel import open_channel
from tetrad.services.errors import FailedPrecondition, from_rpc_error
from tetrad.services.log import get_logger
from tetrad.v1 import worker_pb2, worker_pb2_grpc

log = get_logger()


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What the worker says of itself and its model."""

    device: str
    dtype: str
    vocab_size: int
    max_position_embeddings: int


class WorkerLink:
    """The connection to one worker.

    Args:
        settings: the engine core's.
        epoch: of this engine core.
    """

    def __init__(self, settings: EngineCoreSettings, epoch: int) -> None:
        self._settings = settings
        self.epoch = epoch
        self._channel = open_channel(settings.worker_target, max_message_bytes=settings.max_message_bytes)
        self._stub = worker_pb2_grpc.WorkerLifecycleServiceStub(self._channel)
        self._layout: KVCacheLayout | None = None
        self._facts: WorkerFacts | None = None
        self._is_up = False

    async def bring_up(self) -> tuple[KVCacheLayout, WorkerFacts]:
        """Make the worker ready for plans; return the layout of its KV cache and what it is.

        Waits for a worker that is not there yet. Raises what the worker answers: Unavailable if it goes away meanwhile,
        NotFound, ModelError or another permanent error if it cannot serve the model.
        """
        try:
            self._facts = await self._load_model()
            self._layout = self._layout or await self._find_layout(self._facts)
            await self._stub.InitializeKvCache(self._kv_cache_request(self._layout))
            async for _ in self._stub.WarmUp(worker_pb2.WarmUpRequest()):
                pass
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        self._is_up = True
        return self._layout, self._facts

    def require_up(self) -> tuple[KVCacheLayout, WorkerFacts]:
        """Return what the first bring_up found; it must have succeeded."""
        assert self._layout is not None
        assert self._facts is not None
        return self._layout, self._facts

    async def connect(self, on_change: Callable[[], None]) -> Executor:
        """Return a started executor, on a worker that was brought up for it."""
        if not self._is_up:
            await self.bring_up()
        self._is_up = False  # whatever ends this stream: the next one finds a worker that may have to start over
        executor = Executor(self._channel, depth=self._settings.pipeline_depth, epoch=self.epoch, on_change=on_change)
        await executor.start()
        return executor

    async def call(self, method: str, request: Any) -> Any:
        """Call a unary method of the worker's lifecycle service; its error as ours."""
        try:
            return await getattr(self._stub, method)(request)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def _load_model(self) -> WorkerFacts:
        settings = self._settings
        info = await self._stub.GetInfo(worker_pb2.WorkerLifecycleServiceGetInfoRequest(), wait_for_ready=True)
        request = worker_pb2.LoadModelRequest(
            model=settings.model,
            dtype=settings.dtype,
            quantization=settings.quantization,
            random_weights=settings.load_format == "dummy",
            seed=settings.seed,
        )
        log.info("model.loading", model=settings.model, device=info.device)
        model = None
        async for progress in self._stub.LoadModel(request):
            model = progress.model if progress.HasField("model") else model
        if model is None:
            raise FailedPrecondition("The worker ended LoadModel without saying what it loaded.")
        log.info("model.loaded", model=model.model, weights_size_bytes=model.weights_size_bytes, dtype=model.dtype)
        return WorkerFacts(info.device, model.dtype, model.vocab_size, model.max_position_embeddings)

    async def _find_layout(self, facts: WorkerFacts) -> KVCacheLayout:
        settings = self._settings
        spec = await self._stub.GetKvCacheSpec(worker_pb2.GetKvCacheSpecRequest(block_size=settings.block_size))
        memory = await self._stub.DetermineAvailableMemory(
            worker_pb2.DetermineAvailableMemoryRequest(
                gpu_memory_utilization=settings.gpu_memory_utilization,
                max_num_batched_tokens=settings.max_num_batched_tokens,
            )
        )
        layout = plan_layout(
            settings,
            block_size_bytes=sum(group.block_size_bytes for group in spec.groups),
            available_bytes=memory.available_bytes,
            max_position_embeddings=facts.max_position_embeddings,
        )
        log.info("kv_cache.planned", num_blocks=layout.num_blocks, max_model_len=layout.max_model_len)
        return layout

    def _kv_cache_request(self, layout: KVCacheLayout) -> worker_pb2.InitializeKvCacheRequest:
        return worker_pb2.InitializeKvCacheRequest(
            num_blocks=layout.num_blocks,
            block_size=layout.block_size,
            max_model_len=layout.max_model_len,
            max_num_seqs=self._settings.max_num_seqs,
            max_num_batched_tokens=self._settings.max_num_batched_tokens,
        )
