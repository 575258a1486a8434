"""WorkerService: the Execute stream. Receives plans and sends results; everything between happens on the compute thread.

Runs on the event loop, which is never blocked by a step: plans are queued as they arrive, so the device begins the next one
while the last result is still being written. Lifecycle RPCs are in lifecycle.py.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tetrad.services.errors import FailedPrecondition, InvalidRequest
from tetrad.services.log import get_logger
from tetrad.services.version import SCHEMA_REVISION
from tetrad.v1 import worker_pb2, worker_pb2_grpc
from tetrad.worker_svc.compute_thread import ComputeThread
from tetrad.worker_svc.plan import StepResult
from tetrad.worker_svc.wire import read_plan, write_result
from tetrad.worker_svc.worker import Worker

log = get_logger()

_Results = asyncio.Queue[asyncio.Future[StepResult] | None]


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Executes plans in the order of the stream.

    Args:
        worker: owned by `compute`.
        compute: the compute thread.
        rank: for ExecuteReady.
        max_queued_steps: plans read ahead of the device.
    """

    def __init__(self, worker: Worker, compute: ComputeThread, *, rank: int, max_queued_steps: int) -> None:
        self._worker, self._compute = worker, compute
        self._rank, self._max_queued_steps = rank, max_queued_steps

    async def Execute(
        self, request_iterator: AsyncIterator[worker_pb2.ExecuteRequest], context: Any
    ) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        """Run the plans of one engine core until its stream ends."""
        epoch = await _read_hello(request_iterator)
        stream_id = await self._compute.submit(self._worker.begin_stream)
        log.info("stream.started", peer=context.peer(), epoch=epoch)
        results: _Results = asyncio.Queue(self._max_queued_steps)
        reader = asyncio.create_task(self._queue_plans(request_iterator, stream_id, results))
        try:
            ready = worker_pb2.ExecuteReady(schema_revision=SCHEMA_REVISION, rank=self._rank)
            yield worker_pb2.ExecuteResponse(ready=ready)
            while (result := await results.get()) is not None:
                yield worker_pb2.ExecuteResponse(output=write_result(await result))
            await reader
        finally:
            reader.cancel()
            # Not awaited: this may run in a cancelled call, and the thread's order is all that matters.
            if not self._compute.is_closed:
                self._compute.submit(self._worker.end_stream, stream_id)
            log.info("stream.ended", epoch=epoch)

    async def _queue_plans(self, requests: AsyncIterator[worker_pb2.ExecuteRequest], stream_id: int, results: _Results) -> None:
        """Hand each plan to the compute thread as it arrives; None ends the queue, whether the stream ended or broke."""
        try:
            async for request in requests:
                if request.WhichOneof("message") != "step":
                    raise InvalidRequest("After the hello, every message of an Execute stream is a step.")
                plan = read_plan(request.step)
                future = self._compute.submit(self._worker.execute, stream_id, plan)
                future.add_done_callback(_mark_seen)
                await results.put(future)
        finally:
            await results.put(None)


async def _read_hello(requests: AsyncIterator[worker_pb2.ExecuteRequest]) -> int:
    async for request in requests:
        if request.WhichOneof("message") != "hello":
            raise InvalidRequest("The first message of an Execute stream must be a hello.")
        if request.hello.schema_revision != SCHEMA_REVISION:
            raise FailedPrecondition(
                f"The engine core speaks schema revision {request.hello.schema_revision}, this worker {SCHEMA_REVISION}; "
                "run the same release on both sides."
            )
        return request.hello.epoch
    raise InvalidRequest("The Execute stream ended before its hello.")


def _mark_seen(future: asyncio.Future[StepResult]) -> None:
    """Look at the error of a step whose stream is gone, so that asyncio does not report it as forgotten."""
    if not future.cancelled():
        future.exception()
