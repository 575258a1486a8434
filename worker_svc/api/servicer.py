"""WorkerService: the Execute stream. Receives plans and sends results; the compute thread runs the steps.

Runs on the event loop, which a step never blocks: plans are queued as they arrive, so the device begins the next step while the
last result is still being written. One stream at a time uses the worker; a stream that is superseded, or ended by a draining
worker, gets a status with that reason. Lifecycle RPCs are in lifecycle.py.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

from tetrad.services.errors import FailedPrecondition, InternalError, InvalidRequest, TetradError, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.observability.tracing import Tracer
from tetrad.services.version import CONTRACT_REVISION, SCHEMA_REVISION
from tetrad.v1 import types_pb2, worker_pb2, worker_pb2_grpc
from tetrad.worker_svc.api.encoding import EndedItem, StreamMedia, merged
from tetrad.worker_svc.api.kv_transfer_wire import encode_events
from tetrad.worker_svc.api.kv_transfers import StreamTransfers
from tetrad.worker_svc.api.media_wire import decode_items, encode_ended
from tetrad.worker_svc.api.wire import decode_plan, encode_result
from tetrad.worker_svc.core.kv_transfer import KvTransferEvents
from tetrad.worker_svc.core.plan import SchedulerOutput
from tetrad.worker_svc.core.result import ExecutedStep, ModelRunnerOutput, StagedStep
from tetrad.worker_svc.observability.metrics import WorkerMetrics
from tetrad.worker_svc.observability.request_traces import RequestTraces
from tetrad.worker_svc.worker.compute_thread import ComputeThread
from tetrad.worker_svc.worker.lost_device import LostDevice
from tetrad.worker_svc.worker.queued_steps import finish, stale_epoch
from tetrad.worker_svc.worker.worker import Worker

_HELLO_TIMEOUT_S = 10.0
_QUIET_S = 0.05
"""Time without a plan, in seconds, after which the engine core is assumed to wait for results."""
_SETTLE_TIMEOUT_S = 1.0

log = get_logger()

_Requests = AsyncIterator[worker_pb2.ExecuteRequest]


class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Executes plans in the order of the stream.

    Args:
        worker: the worker, owned by `compute`.
        compute: the compute thread.
        waiting: a thread that waits for the device.
        encoding: the encoder thread.
        rank, instance_id, capabilities: values of ExecuteReady.
        max_queued_steps: largest number of plans that are read ahead of the device.
        open_transfers: makes the transfers of the stream with an id.
        lost_device: watches the end of every stream, and checks the device after failed steps.
        note_step: called on the compute thread before each step.
        metrics: the metrics of the worker.
        tracer: creates the spans of requests.
    """

    def __init__(
        self,
        worker: Worker,
        compute: ComputeThread,
        waiting: ComputeThread,
        encoding: ComputeThread,
        *,
        rank: int,
        instance_id: str,
        capabilities: Callable[[], Sequence[types_pb2.Capability]],
        max_queued_steps: int,
        open_transfers: Callable[[int], StreamTransfers],
        lost_device: LostDevice,
        note_step: Callable[[], None],
        metrics: WorkerMetrics,
        tracer: Tracer,
    ) -> None:
        self._note_step = note_step
        self._worker, self._compute, self._waiting, self._lost_device = worker, compute, waiting, lost_device
        self._encoding, self._metrics, self._tracer, self._capabilities = encoding, metrics, tracer, capabilities
        self._ready = worker_pb2.ExecuteReady(
            schema_revision=SCHEMA_REVISION,
            contract_revision=CONTRACT_REVISION,
            rank=rank,
            instance_id=instance_id,
            supports_shared_sampling_params=True,
        )
        self._max_queued_steps, self._open_transfers = max_queued_steps, open_transfers
        self._streams: set[_Stream] = set()
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._draining = False

    async def Execute(self, request_iterator: _Requests, context: Any) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        """Run the plans of one engine core until its stream ends."""
        hello = await _read_hello(request_iterator)
        self._check_open()
        stream_id = await self._compute.submit(self._worker.begin_stream, hello.epoch)
        for other in self._streams:
            other.stop(stale_epoch())
        log.info("stream.started", peer=context.peer(), epoch=hello.epoch, contract_revision=hello.contract_revision)
        traces = RequestTraces(self._tracer)

        def execute(plan: SchedulerOutput) -> ExecutedStep:
            self._note_step()
            return self._worker.execute(stream_id, plan)  # looked up at each step: a profiler may have replaced the method

        fail = self._worker.step_failed
        stream = _Stream(execute, fail, self._compute, self._waiting, self._metrics, traces, self._max_queued_steps)
        stream.media = self._open_media(stream_id, stream)
        if types_pb2.CAPABILITY_KV_TRANSFER in hello.capabilities and self._worker.shares_blocks:
            stream.transfers = self._open_transfers(stream_id)
        self._streams.add(stream)
        self._none_open.clear()
        try:
            self._check_open()
            yield self._ready_response()
            async for response in stream.run(request_iterator):
                yield response
        except InternalError:
            # The engine core gets the error after the check, so that no further step is sent to a lost device.
            await self._lost_device.check(self._compute.submit(self._worker.check_device))
            raise
        finally:
            traces.close()
            self._streams.discard(stream)
            if not self._streams:
                self._none_open.set()
            # Not awaited: this may run in a cancelled call, and only the order of the thread's calls matters.
            if not self._compute.is_closed:
                self._lost_device.watch(self._compute.submit(self._worker.end_stream, stream_id))
                self._lost_device.watch(self._waiting.submit(_do_nothing))
            log.info("stream.ended", epoch=hello.epoch)

    async def drain(self) -> None:
        """Accept no more plans, answer the received ones, and end the streams without an error."""
        self._draining = True
        for stream in self._streams:
            stream.stop(None)
        await self._none_open.wait()

    def _ready_response(self) -> worker_pb2.ExecuteResponse:
        response = worker_pb2.ExecuteResponse(ready=self._ready)
        response.ready.capabilities.extend(self._capabilities())
        return response

    def _open_media(self, stream_id: int, stream: "_Stream") -> StreamMedia | None:
        """Return the media items of a stream; None if the model takes only text."""
        media, layout = self._worker.media, self._worker.snapshot().layout
        if media is None or layout is None:
            return None
        thread = self._encoding if media.tower.has_own_thread else self._compute

        def fail(error: BaseException) -> None:
            log.error("encoding.failed", exc_info=error)
            stream.stop(InternalError(f"Encoding failed on the device: {error}", reason="STEP_FAILED"))

        encode = partial(self._metrics.run_encoding, self._worker.encode, stream_id)
        return StreamMedia(encode, thread, layout.encoder_cache_size, fail)

    def _check_open(self) -> None:
        if self._draining:
            raise Unavailable("The worker is draining.", reason="DRAINING")


_Launched = tuple[int, asyncio.Future[ExecutedStep]]
"""Id of a step, and the future of its launch on the compute thread."""


class _Stream:
    """The plans of one Execute stream, between the event loop and the compute thread."""

    def __init__(
        self,
        execute: Callable[[SchedulerOutput], ExecutedStep],
        step_failed: Callable[[int, Exception], InternalError],
        compute: ComputeThread,
        waiting: ComputeThread,
        metrics: WorkerMetrics,
        traces: RequestTraces,
        max_queued_steps: int,
    ) -> None:
        self._execute, self._step_failed = execute, step_failed
        self._compute, self._waiting = compute, waiting
        self._metrics, self._traces = metrics, traces
        self._results: asyncio.Queue[_Launched | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(max_queued_steps)
        self._arrived = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._error: TetradError | None = None
        self.media: StreamMedia | None = None
        self.transfers: StreamTransfers | None = None

    async def run(self, requests: _Requests) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        """Yield results in the order of plans, and ends of media items and transfers; raise the error that ended the stream."""
        answers, media, transfers = self._answers(requests), self.media, self.transfers
        if media is not None:
            answers = merged(answers, media.events, _event)
        if transfers is not None:
            answers = merged(answers, transfers.events, _transfer_event)
        try:
            async for answer in answers:
                yield answer
        finally:
            if media is not None:
                media.close()
            if transfers is not None:
                await transfers.close()

    async def _answers(self, requests: _Requests) -> AsyncIterator[worker_pb2.ExecuteResponse]:
        """Yield the plans' results in order; raise the error that ended the stream, if any."""
        self._reader = asyncio.create_task(self._queue_plans(requests))
        self._reader.add_done_callback(_mark_seen)
        try:
            while (launched := await self._results.get()) is not None:
                self._room.release()
                result = await self._result(*launched)
                if self.transfers is not None:
                    self.transfers.note_returned(result.step_id)
                self._metrics.note_result(result)
                self._traces.note_result(result)
                yield worker_pb2.ExecuteResponse(output=_write(result))
            if self._error is not None:
                raise self._error
            if self._is_stopped:
                await self._settle()
            else:
                await self._reader
        finally:
            self._reader.cancel()

    def stop(self, error: TetradError | None) -> None:
        """Accept no more plans; the stream ends after the received ones, with this error, or without one if it is None."""
        self._is_stopped, self._error = True, self._error or error
        self._results.put_nowait(None)

    async def _queue_plans(self, requests: _Requests) -> None:
        """Queue each plan on the compute thread as it arrives; put None at the end, after a normal end or an error."""
        try:
            async for request in requests:
                self._arrived.set()
                is_media = request.WhichOneof("message") == "encoder_inputs"
                if not self._is_stopped and not is_media:
                    await self._room.acquire()
                if self._is_stopped:
                    continue  # sent before the engine core saw the end of the stream; it repeats the plan on another worker
                if is_media:
                    self._take_media(request.encoder_inputs)
                    continue
                queued_at = time.perf_counter()
                plan = _read(request)
                if self.media is not None:
                    self.media.note_plan(plan.step_id, plan.freed_media)
                self._note_transfers(plan)
                self._traces.note_plan(plan)
                future = self._compute.submit(self._metrics.run_step, plan, queued_at, self._execute)
                future.add_done_callback(_mark_seen)
                self._results.put_nowait((plan.step_id, future))
        finally:
            self._results.put_nowait(None)

    def _note_transfers(self, plan: SchedulerOutput) -> None:
        if self.transfers is not None:
            self.transfers.note_plan(plan.step_id, plan.transfers)
        elif plan.transfers is not None:
            raise InvalidRequest("kv_transfers: this worker's KV blocks cannot be moved.", reason="INVALID_PLAN")

    def _take_media(self, inputs: worker_pb2.EncoderInputs) -> None:
        try:
            if self.media is None:
                raise InvalidRequest("encoder_inputs: the model on this worker takes only text.")
            self.media.take(decode_items(inputs))
        except InvalidRequest as error:
            raise InvalidRequest(error.message, reason="INVALID_PLAN") from error

    async def _result(self, step_id: int, launch: asyncio.Future[ExecutedStep]) -> ModelRunnerOutput:
        """Return a step's output; the compute thread starts the next step while the device runs this one."""
        done = await launch
        if isinstance(done, ModelRunnerOutput):
            return done
        if isinstance(done, StagedStep):
            return await self._passed(step_id, done)
        return await self._waiting.submit(finish, step_id, done)

    async def _passed(self, step_id: int, step: StagedStep) -> ModelRunnerOutput:
        """Return the output of a step in a pipeline; the compute thread starts other steps meanwhile."""
        try:
            await self._waiting.submit(step.arrive)
            # A step that is queued before this call may complete it earlier.
            self._compute.submit(step.complete).add_done_callback(_mark_seen)
            return await asyncio.wrap_future(step.result)
        except Exception as error:
            raise self._step_failed(step_id, error) from error

    async def _settle(self) -> None:
        """Wait until no more plans arrive: a stream that ends while the engine core writes to it looks broken there."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_TIMEOUT_S):
                while True:
                    self._arrived.clear()
                    async with asyncio.timeout(_QUIET_S):
                        await self._arrived.wait()


def _read(request: worker_pb2.ExecuteRequest) -> SchedulerOutput:
    try:
        if request.WhichOneof("message") != "step":
            raise InvalidRequest("After the hello, every message of an Execute stream is a step or has media to encode.")
        return decode_plan(request.step)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, reason="INVALID_PLAN") from error


def _event(ended: EndedItem) -> worker_pb2.ExecuteResponse:
    return worker_pb2.ExecuteResponse(encoder_events=encode_ended(ended))


def _transfer_event(events: KvTransferEvents) -> worker_pb2.ExecuteResponse:
    return worker_pb2.ExecuteResponse(kv_events=encode_events(events))


def _write(result: ModelRunnerOutput) -> worker_pb2.ModelRunnerOutput:
    try:
        return encode_result(result)
    except Exception as error:
        log.exception("step.failed", step_id=result.step_id)
        raise InternalError(f"The result of step {result.step_id} cannot be sent: {error}", reason="STEP_FAILED") from error


async def _read_hello(requests: _Requests) -> worker_pb2.ExecuteHello:
    try:
        async with asyncio.timeout(_HELLO_TIMEOUT_S):
            request = await anext(requests, None)
    except TimeoutError:
        raise InvalidRequest(f"No hello came within {_HELLO_TIMEOUT_S:g} s.") from None
    if request is None:
        raise InvalidRequest("The Execute stream ended before its hello.")
    if request.WhichOneof("message") != "hello":
        raise InvalidRequest("The first message of an Execute stream must be a hello.")
    if request.hello.schema_revision != SCHEMA_REVISION:
        raise FailedPrecondition(
            f"The engine core speaks schema revision {request.hello.schema_revision}, this worker {SCHEMA_REVISION}; "
            "run the same release on both sides."
        )
    return request.hello


def _mark_seen(future: asyncio.Future[Any]) -> None:
    """Retrieve the error of an abandoned task, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


def _do_nothing() -> None:
    """Do nothing: as a queued call, this ends after all earlier calls have ended."""
