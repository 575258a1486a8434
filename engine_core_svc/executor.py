"""Executor: carries plans to the worker and results back over its Execute stream.

Called by the step loop, on the event loop. Results are put aside and `on_change` is called; nothing here waits for a step. When
the stream ends, `lost` says why, and the executor is of no more use: recovery makes a new one. Knows nothing of requests.
"""

import asyncio
import contextlib
from collections.abc import Callable

import grpc

from tetrad.engine_core_svc.scheduler.output import ModelRunnerOutput, SchedulerOutput
from tetrad.engine_core_svc.wire import plan_to_wire, result_from_wire
from tetrad.services.errors import FailedPrecondition, TetradError, Unavailable, from_rpc_error
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import worker_pb2, worker_pb2_grpc

_CLOSE_TIMEOUT_S = 1.0


class Executor:
    """One Execute stream.

    Args:
        channel: to the worker; stays the caller's.
        depth: steps that may be in flight.
        epoch: of this engine core, for the worker's log.
        on_change: called on the event loop when a result is there or the stream is lost.
    """

    def __init__(self, channel: grpc.aio.Channel, *, depth: int, epoch: int, on_change: Callable[[], None]) -> None:
        self._stub = worker_pb2_grpc.WorkerServiceStub(channel)
        self._depth = depth
        self._epoch = epoch
        self._on_change = on_change
        self._outbound: asyncio.Queue[worker_pb2.ExecuteRequest] = asyncio.Queue()
        self._results: list[ModelRunnerOutput] = []
        self._num_in_flight = 0
        self._call: grpc.aio.StreamStreamCall | None = None
        self._reader: asyncio.Task[None]
        self._writer: asyncio.Task[None]
        self.lost: TetradError | None = None

    async def start(self) -> None:
        """Open the stream and shake hands; the error of the worker, or FailedPrecondition for another revision."""
        call = self._stub.Execute(wait_for_ready=True)
        hello = worker_pb2.ExecuteHello(schema_revision=SCHEMA_REVISION, epoch=self._epoch)
        try:
            await call.write(worker_pb2.ExecuteRequest(hello=hello))
            first = await call.read()
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        if not isinstance(first, worker_pb2.ExecuteResponse):
            raise Unavailable("The worker closed the Execute stream before it was ready.")
        if first.ready.schema_revision != SCHEMA_REVISION:
            raise FailedPrecondition(
                f"The worker speaks schema revision {first.ready.schema_revision}, this engine core {SCHEMA_REVISION}."
            )
        self._call = call
        self._reader = asyncio.create_task(self._read(call), name="executor.read")
        self._writer = asyncio.create_task(self._write(call), name="executor.write")

    @property
    def has_room(self) -> bool:
        """Whether another plan may be sent."""
        return self.lost is None and self._num_in_flight < self._depth

    @property
    def num_in_flight(self) -> int:
        """Plans whose result was not taken yet."""
        return self._num_in_flight

    def dispatch(self, plan: SchedulerOutput) -> None:
        """Send a plan; its result comes in the same order."""
        self._num_in_flight += 1
        self._outbound.put_nowait(plan_to_wire(plan))

    def take_results(self) -> list[ModelRunnerOutput]:
        """Return the results that have come since the last call."""
        results, self._results = self._results, []
        self._num_in_flight -= len(results)
        return results

    async def close(self) -> None:
        """End the stream: in good order if the worker answers within a moment. The worker then forgets every request."""
        if self._call is None:
            return
        self._writer.cancel()
        with contextlib.suppress(TimeoutError, grpc.RpcError, asyncio.InvalidStateError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._call.done_writing()
                await asyncio.wait([self._reader])
        self._reader.cancel()
        self._call.cancel()
        await asyncio.gather(self._reader, self._writer, return_exceptions=True)

    async def _write(self, call: grpc.aio.StreamStreamCall) -> None:
        """Send plans in order; when the stream breaks, the reader says why."""
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            while True:
                await call.write(await self._outbound.get())

    async def _read(self, call: grpc.aio.StreamStreamCall) -> None:
        try:
            while isinstance(response := await call.read(), worker_pb2.ExecuteResponse):
                self._results.append(result_from_wire(response.output))
                self._on_change()
            self.lost = Unavailable("The worker ended the Execute stream.")
        except grpc.RpcError as error:
            self.lost = from_rpc_error(error)
        self._on_change()
