"""Worker link: brings a worker up to the point where it takes plans, the first time and after each loss.

Load the model, size and allocate the KV cache, warm up, open the Execute stream. The layout found the first time is kept: block
tables stay meaningful across workers. Every wait ends: a worker that is stuck is Unavailable. Knows the lifecycle contract;
knows nothing of requests.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.worker.executor import Executor
from tetrad.engine_core_svc.worker.kv_layout import KVCacheLayout, largest_step, plan_layout
from tetrad.engine_core_svc.worker.pause_link import PauseLink
from tetrad.services.channel import open_channel
from tetrad.services.errors import DeadlineExceeded, FailedPrecondition, TetradError, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.message_size import DEFAULT_MAX_MESSAGE_BYTES
from tetrad.services.running_time import running_timeout
from tetrad.services.status import from_rpc_error
from tetrad.v1 import worker_pb2, worker_pb2_grpc

_ANSWER_TIMEOUT_S = 10.0
"""For GetInfo, which a worker answers at once whatever its device is doing."""

log = get_logger()

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What the worker says of itself and its model; no message to or from it may have more than max_message_bytes."""

    device: str
    dtype: str
    vocab_size: int
    max_position_embeddings: int
    version: str = ""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    weights_dtype: str = ""


class WorkerLink:
    """The connection to one worker.

    Args:
        settings: the engine core's.
        epoch: of this engine core; see the attribute.

    Attributes:
        pauses: what the worker keeps for the next engine core.
        epoch: of this engine core; raised if the worker's engine core has a larger one when this one first comes to it.
    """

    def __init__(self, settings: EngineCoreSettings, epoch: int) -> None:
        self._settings = settings
        self.epoch = epoch
        self._channel = open_channel(settings.worker_target, max_message_bytes=settings.max_message_bytes, tls=settings.tls)
        self._stub = worker_pb2_grpc.WorkerLifecycleServiceStub(self._channel)
        self.pauses = PauseLink(self._stub)
        self._layout: KVCacheLayout | None = None
        self._facts: WorkerFacts | None = None
        self._is_up = False

    async def bring_up(self) -> tuple[KVCacheLayout, WorkerFacts]:
        """Make the worker ready for plans; return the layout of its KV cache and what it is.

        Raises Unavailable if there is no worker, or if it goes away or makes no progress meanwhile; FailedPrecondition with
        reason STALE_EPOCH if a newer engine core has it; NotFound, ModelError or another permanent error if it cannot serve
        the model.
        """
        try:
            self._facts = await self._load_model()
            self._layout = self._layout or await self._find_layout(self._facts)
            request = self._kv_cache_request(self._layout)
            cache = _readable(await self._stub.InitializeKvCache(request, timeout=self._settings.step_timeout_s))
            async for _ in self._progress_of("WarmUp", self._stub.WarmUp(worker_pb2.WarmUpRequest())):
                pass
        except grpc.RpcError as error:
            raise _error_of(error) from error
        if cache.num_host_blocks < self._layout.num_host_blocks:
            raise FailedPrecondition(
                f"The worker has {cache.num_host_blocks} host blocks where swap_space asks for {self._layout.num_host_blocks}: "
                "it is of an older release. Upgrade it, or set swap_space to 0."
            )
        self._is_up = True
        return self._layout, self._facts

    def require_up(self) -> tuple[KVCacheLayout, WorkerFacts]:
        """Return what the first bring_up found; it must have succeeded."""
        assert self._layout is not None
        assert self._facts is not None
        return self._layout, self._facts

    @property
    def computes_on_cores(self) -> bool:
        """Whether the worker that was brought up last has no device of its own."""
        return self._facts is not None and self._facts.device == "cpu"

    async def connect(self, on_change: Callable[[], None]) -> Executor:
        """Return a started executor, on a worker that was brought up for it."""
        if not self._is_up:
            await self.bring_up()
        self._is_up = False  # whatever ends this stream: the next one finds a worker that may have to start over
        executor = Executor(
            self._channel,
            depth=self._settings.pipeline_depth,
            epoch=self.epoch,
            vocab_size=self.require_up()[1].vocab_size,
            step_timeout_s=self._settings.step_timeout_s,
            on_change=on_change,
        )
        try:
            await executor.start()
        except FailedPrecondition as error:
            raise _unavailable_if_replaced(error) from error
        return executor

    async def sleep(self, level: int) -> None:
        """Let the worker give its memory up; no Execute stream may be open. Unavailable if there is none with the model."""
        try:
            await self.call("Sleep", worker_pb2.WorkerLifecycleServiceSleepRequest(level=level))
        except FailedPrecondition as error:
            raise _unavailable_if_replaced(error) from error

    async def wake_up(self, tags: Sequence[str]) -> bool:
        """Undo `sleep` for some parts (none: all) and return whether something still sleeps; see worker.proto for errors.

        Weights that are loaded anew may take as long as the first time, as long as there is progress.
        """
        if not tags or "weights" in tags:
            try:
                await self._load_model()
            except grpc.RpcError as error:
                raise from_rpc_error(error) from error
        answer = await self.call("WakeUp", worker_pb2.WorkerLifecycleServiceWakeUpRequest(tags=tags))
        return bool(answer.sleeping)

    async def call(self, method: str, request: Any) -> Any:
        """Call a unary method of the worker's lifecycle service; its error as ours."""
        return await self.call_within(self._settings.step_timeout_s, method, request)

    async def call_within(self, timeout_s: float | None, method: str, request: Any) -> Any:
        """Call such a method with a limit of its own; None: none."""
        try:
            return await getattr(self._stub, method)(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def _load_model(self) -> WorkerFacts:
        settings = self._settings
        info = _readable(
            await self._stub.GetInfo(
                worker_pb2.WorkerLifecycleServiceGetInfoRequest(), wait_for_ready=True, timeout=_ANSWER_TIMEOUT_S
            )
        )
        if info.epoch > self.epoch and self._layout is None:
            # The one before this, on a host whose clock is ahead, or before the clock was set back. Who starts last has it.
            self.epoch = info.epoch + 1
        elif info.epoch > self.epoch:
            raise FailedPrecondition(
                f"Another engine core, of epoch {info.epoch}, has the worker; this one is of epoch {self.epoch}. "
                "A worker serves one engine core: start this one with another worker, or not at all.",
                reason="STALE_EPOCH",
            )
        await self.pauses.meet(info)
        request = worker_pb2.LoadModelRequest(
            model=settings.model,
            dtype=settings.dtype,
            quantization=settings.quantization,
            hf_overrides_json=settings.hf_overrides,
            random_weights=settings.load_format == "dummy",
            seed=settings.seed,
        )
        log.info("model.loading", model=settings.model, device=info.device)
        model = None
        async for progress in self._progress_of("LoadModel", self._stub.LoadModel(request)):
            model = progress.model if progress.HasField("model") else model
        if model is None:
            raise FailedPrecondition("The worker ended LoadModel without saying what it loaded.")
        log.info("model.loaded", model=model.model, weights_size_bytes=model.weights_size_bytes, dtype=model.dtype)
        their_limit = info.max_message_bytes if info.HasField("max_message_bytes") else DEFAULT_MAX_MESSAGE_BYTES
        return WorkerFacts(
            info.device,
            model.dtype,
            model.vocab_size,
            model.max_position_embeddings,
            info.version,
            max_message_bytes=min(settings.max_message_bytes, their_limit),
            weights_dtype=model.weights_dtype,
        )

    async def _find_layout(self, facts: WorkerFacts) -> KVCacheLayout:
        settings = self._settings
        spec_request = worker_pb2.GetKvCacheSpecRequest(block_size=settings.block_size)
        spec = _readable(await self._stub.GetKvCacheSpec(spec_request, timeout=settings.step_timeout_s))
        memory_request = worker_pb2.DetermineAvailableMemoryRequest(
            gpu_memory_utilization=settings.gpu_memory_utilization,
            max_num_batched_tokens=largest_step(settings, facts.max_position_embeddings),
        )
        memory = _readable(await self._stub.DetermineAvailableMemory(memory_request, timeout=settings.step_timeout_s))
        layout = plan_layout(
            settings,
            block_size_bytes=sum(group.block_size_bytes for group in spec.groups),
            available_bytes=memory.available_bytes,
            max_position_embeddings=facts.max_position_embeddings,
            cache_dtype=" and ".join(sorted({group.dtype for group in spec.groups})),
        )
        log.info(
            "kv_cache.planned",
            num_blocks=layout.num_blocks,
            max_model_len=layout.max_model_len,
            kv_cache_dtype=layout.cache_dtype,
        )
        return layout

    async def _progress_of(self, name: str, call: grpc.aio.UnaryStreamCall) -> AsyncIterator[Any]:
        """Yield a call's messages; Unavailable if the next one does not come in time, however long the whole may take."""
        timeout_s = self._settings.step_timeout_s
        try:
            while True:
                async with running_timeout(timeout_s):
                    message = await call.read()
                if message is grpc.aio.EOF:
                    return
                yield _readable(message)
        except TimeoutError:
            raise Unavailable(f"The worker has made no progress with {name} for {timeout_s:g} s.") from None
        finally:
            call.cancel()

    def _kv_cache_request(self, layout: KVCacheLayout) -> worker_pb2.InitializeKvCacheRequest:
        return worker_pb2.InitializeKvCacheRequest(
            num_blocks=layout.num_blocks,
            block_size=layout.block_size,
            max_model_len=layout.max_model_len,
            max_num_seqs=self._settings.max_num_seqs,
            max_num_batched_tokens=layout.max_num_batched_tokens,
            num_host_blocks=layout.num_host_blocks,
        )


def _readable(message: Message | None) -> Message:
    """Return an answer; Unavailable for bytes that are none: gRPC gives None for them, and another worker may do better."""
    if message is None:
        raise Unavailable("The worker answers with bytes that cannot be read.")
    return message


def _error_of(error: grpc.RpcError) -> TetradError:
    mapped = from_rpc_error(error)
    if isinstance(mapped, DeadlineExceeded):
        return Unavailable(f"The worker does not answer ({mapped.message}).")
    return _unavailable_if_replaced(mapped)


def _unavailable_if_replaced(error: TetradError) -> TetradError:
    """A worker without the model or the KV cache it had a moment ago is another one: try again from the start."""
    if error.reason == "NOT_READY":
        return Unavailable(f"The worker was replaced while it was brought up ({error.message}).")
    return error
