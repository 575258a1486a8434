"""Rank link: the lifecycle calls of an engine core to one worker, each with its timeout.

Called by the worker link, which knows the order of the calls and the values that all ranks share. Knows the lifecycle contract;
knows nothing of requests.
"""

from collections.abc import AsyncIterator
from typing import Any, TypeVar

import grpc

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.services.errors import DeadlineExceeded, FailedPrecondition, TetradError, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.rpc.carrier import Carrier
from tetrad.services.rpc.status import from_rpc_error
from tetrad.services.timers.running_time import running_timeout
from tetrad.v1 import worker_pb2, worker_pb2_grpc

_ANSWER_TIMEOUT_S = 10.0
"""Timeout in seconds of GetInfo, which a worker answers at once even while its device computes."""
_JOIN_TIMEOUT_S = 60.0
"""Seconds for the ranks of a group to meet."""
_JOIN_MARGIN_S = 10.0

log = get_logger()

Message = TypeVar("Message")
Info = worker_pb2.WorkerLifecycleServiceGetInfoResponse


class RankLink:
    """The lifecycle calls to one worker.

    Args:
        settings: settings of the engine core.
        rank: rank of the worker in its group.
        target: its address.
        carrier: connects to it.
    """

    def __init__(self, settings: EngineCoreSettings, rank: int, target: str, carrier: Carrier) -> None:
        self._settings = settings
        self.rank, self.target = rank, target
        self.channel = carrier.connect(target, max_message_bytes=settings.max_message_bytes, tls=settings.tls)
        self.stub = worker_pb2_grpc.WorkerLifecycleServiceStub(self.channel)

    async def info(self) -> Info:
        """Return the worker's description; wait some seconds for a worker that starts. Raises Unavailable if none answers."""
        request = worker_pb2.WorkerLifecycleServiceGetInfoRequest()
        try:
            info: Info = _readable(await self.stub.GetInfo(request, wait_for_ready=True, timeout=_ANSWER_TIMEOUT_S))
        except grpc.RpcError as error:
            if self._settings.num_ranks == 1 or not isinstance(from_rpc_error(error), DeadlineExceeded | Unavailable):
                raise
            text = f"No worker answers for rank {self.rank} at {self.target} ({from_rpc_error(error).message})."
            raise Unavailable(text) from error
        return info

    async def join(self, group: worker_pb2.WorkerGroup) -> None:
        """Make the worker meet the other ranks of its group. Raises Unavailable if one of them is missing."""
        request = worker_pb2.JoinGroupRequest(rank=self.rank, group=group, timeout_s=_JOIN_TIMEOUT_S)
        try:
            await self.stub.JoinGroup(request, timeout=_JOIN_TIMEOUT_S + _JOIN_MARGIN_S)
        except grpc.RpcError as error:
            found = from_rpc_error(error)
            if not isinstance(found, DeadlineExceeded):
                raise
            raise Unavailable(found.message) from error

    async def load_model(self, request: worker_pb2.LoadModelRequest) -> worker_pb2.ModelInfo:
        """Return the loaded model; the call may take any time as long as it makes progress."""
        model: worker_pb2.ModelInfo | None = None
        async for progress in self._progress_of("LoadModel", self.stub.LoadModel(request)):
            model = progress.model if progress.HasField("model") else model
        if model is None:
            raise FailedPrecondition("The worker ended LoadModel without saying what it loaded.")
        return model

    async def kv_cache_spec(self, request: worker_pb2.GetKvCacheSpecRequest) -> worker_pb2.GetKvCacheSpecResponse:
        """Return the worker's description of its KV cache."""
        timeout_s = self._settings.step_timeout_s
        spec: worker_pb2.GetKvCacheSpecResponse = _readable(await self.stub.GetKvCacheSpec(request, timeout=timeout_s))
        return spec

    async def available_bytes(self, request: worker_pb2.DetermineAvailableMemoryRequest) -> int:
        """Return the bytes that the worker's KV blocks may take."""
        answer = _readable(await self.stub.DetermineAvailableMemory(request, timeout=self._settings.step_timeout_s))
        return int(answer.available_bytes)

    async def initialize_kv_cache(self, request: worker_pb2.InitializeKvCacheRequest) -> None:
        """Make the worker allocate its blocks. Raises FailedPrecondition if it lacks the requested second tier."""
        answer = _readable(await self.stub.InitializeKvCache(request, timeout=self._settings.step_timeout_s))
        if answer.num_host_blocks < request.num_host_blocks:
            raise FailedPrecondition(
                f"The worker has {answer.num_host_blocks} host blocks where swap_space asks for {request.num_host_blocks}: "
                "it is of an older release. Upgrade it, or set swap_space to 0."
            )

    async def warm_up(self) -> None:
        """Make the worker run its dummy steps."""
        async for _ in self._progress_of("WarmUp", self.stub.WarmUp(worker_pb2.WarmUpRequest())):
            pass

    async def call(self, method: str, request: Any, *, timeout_s: float | None = -1) -> Any:
        """Call a unary method of the lifecycle service. Raises its error, and Unavailable for an unreadable answer.

        Args:
            method: name of the method.
            request: its request message.
            timeout_s: maximum wait in seconds; None: no limit; -1: the timeout of a step.
        """
        timeout_s = self._settings.step_timeout_s if timeout_s == -1 else timeout_s
        try:
            return _readable(await getattr(self.stub, method)(request, timeout=timeout_s))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    async def close(self) -> None:
        """Close the channel."""
        await self.channel.close()

    async def _progress_of(self, name: str, call: grpc.aio.UnaryStreamCall) -> AsyncIterator[Any]:
        """Yield a call's messages. Raises Unavailable if the next one takes longer than a step; the whole has no limit."""
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


def error_of(error: grpc.RpcError) -> TetradError:
    """Return the TetradError for a call that failed while a worker was being prepared."""
    mapped = from_rpc_error(error)
    if isinstance(mapped, DeadlineExceeded):
        return Unavailable(f"The worker does not answer ({mapped.message}).")
    return unavailable_if_replaced(mapped)


def unavailable_if_replaced(error: TetradError) -> TetradError:
    """Return Unavailable if the worker has lost its model or KV cache: it was replaced, and the caller tries again."""
    if error.reason == "NOT_READY":
        return Unavailable(f"The worker was replaced while it was brought up ({error.message}).")
    return error


def _readable(message: Message | None) -> Message:
    """Return an answer. Raises Unavailable for None, gRPC's value for unreadable bytes: another worker may answer correctly."""
    if message is None:
        raise Unavailable("The worker answers with bytes that cannot be read.")
    return message
