"""Executor: sends plans to the worker and receives results, over its Execute stream.

Called by the step loop, on the event loop. Results are queued and `on_change` is called; no method waits for a step. When the
stream ends, breaks, delivers an invalid result or nothing for too long, `lost` has the reason, and recovery makes a new
executor. Knows nothing of requests.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial

import grpc

from tetrad.engine_core_svc.core.media import EncoderEvents, EncoderInput, MediaSpan
from tetrad.engine_core_svc.core.media_wire import decode_events, encode_items
from tetrad.engine_core_svc.core.plan import ModelRunnerOutput, SchedulerOutput, TransferEvents
from tetrad.engine_core_svc.core.wire import decode_transfer_events
from tetrad.engine_core_svc.worker.group import Loss
from tetrad.engine_core_svc.worker.in_flight import Encodings, InFlight, fault
from tetrad.engine_core_svc.worker.wire import decode_result, encode_plan
from tetrad.services.errors import FailedPrecondition, InternalError, TetradError, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.rpc.status import from_rpc_error
from tetrad.services.timers.running_time import Watchdog, running_timeout
from tetrad.services.version import CONTRACT_REVISION, SCHEMA_REVISION
from tetrad.v1 import types_pb2, worker_pb2, worker_pb2_grpc

_CLOSE_TIMEOUT_S = 1.0
_HANDSHAKE_TIMEOUT_S = 10.0
_CUT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_HIDDEN = "Internal error from Core"
"""grpc.aio's text in place of the status of a call that ended while a message was written to it."""

log = get_logger()


class Executor:
    """A PlanStream to one rank, over the rank's Execute stream.

    Args:
        channel: channel to the worker; the caller closes it.
        depth: maximum number of steps in flight.
        epoch: epoch of this engine core.
        vocab_size: size of the model's vocabulary.
        step_timeout_s: maximum seconds without a result while plans are in flight.
        moves_blocks: whether plans may have transfers of KV blocks; the worker must support them.
        on_change: called on the event loop when a result has arrived or the stream is lost.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        depth: int,
        epoch: int,
        vocab_size: int,
        step_timeout_s: float,
        moves_blocks: bool = False,
        on_change: Callable[[], None],
    ) -> None:
        self._stub = worker_pb2_grpc.WorkerServiceStub(channel)
        self._depth = depth
        self._epoch = epoch
        self._step_timeout_s = step_timeout_s
        self._on_change, self._moves_blocks = on_change, moves_blocks
        self._transfer_events: list[TransferEvents] = []
        self._outbound: asyncio.Queue[worker_pb2.ExecuteRequest] = asyncio.Queue()
        self._unanswered = InFlight(vocab_size)
        self._results: list[ModelRunnerOutput] = []
        self._watchdog = Watchdog(step_timeout_s, partial(self._give_up_waiting, "step"))
        self._encodings = Encodings(step_timeout_s, partial(self._give_up_waiting, "media item"))
        self._call: grpc.aio.StreamStreamCall | None = None
        self._reader: asyncio.Task[None]
        self._writer: asyncio.Task[None]
        self.lost: Loss | None = None
        self.instance_id = ""
        self.shares_params = self.verifies_drafts = self._cancels_transfers = False

    async def start(self) -> None:
        """Open the stream and exchange hello and ready.

        Raises the worker's error, Unavailable if it does not answer, FailedPrecondition for another schema revision, or if the
        worker does not support transfers that plans may have.
        """
        call = self._stub.Execute(wait_for_ready=True)
        hello = worker_pb2.ExecuteHello(
            schema_revision=SCHEMA_REVISION,
            contract_revision=CONTRACT_REVISION,
            epoch=self._epoch,
            capabilities=[types_pb2.CAPABILITY_KV_TRANSFER] if self._moves_blocks else (),
        )
        try:
            async with running_timeout(_HANDSHAKE_TIMEOUT_S):
                await call.write(worker_pb2.ExecuteRequest(hello=hello))
                first = await call.read()
        except TimeoutError:
            call.cancel()
            raise Unavailable(f"The worker did not open its Execute stream within {_HANDSHAKE_TIMEOUT_S:g} s.") from None
        except asyncio.InvalidStateError:  # the stream ended before the hello was written
            raise Unavailable("The worker refused the Execute stream.") from None
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        if not isinstance(first, worker_pb2.ExecuteResponse):
            raise Unavailable("The worker closed the Execute stream before it was ready.")
        if first.ready.schema_revision != SCHEMA_REVISION:
            raise FailedPrecondition(
                f"The worker speaks schema revision {first.ready.schema_revision}, this engine core {SCHEMA_REVISION}."
            )
        self.instance_id = first.ready.instance_id
        announced = first.ready.capabilities
        self.shares_params = (
            first.ready.supports_shared_sampling_params or types_pb2.CAPABILITY_SHARED_SAMPLING_PARAMS in announced
        )
        self.verifies_drafts = types_pb2.CAPABILITY_DRAFT_TOKENS in announced
        self._cancels_transfers = types_pb2.CAPABILITY_KV_TRANSFER_CANCEL in announced
        if self._moves_blocks and types_pb2.CAPABILITY_KV_TRANSFER not in announced:
            call.cancel()
            raise FailedPrecondition(
                "kv-role needs workers that move KV blocks: one rank, and a model without states and without a drafter."
            )
        log.info("worker.connected", instance_id=self.instance_id, contract_revision=first.ready.contract_revision)
        self._call = call
        self._reader = asyncio.create_task(self._read(call), name="executor.read")
        self._writer = asyncio.create_task(self._write(call), name="executor.write")

    @property
    def has_room(self) -> bool:
        """Whether another plan may be sent."""
        return self.lost is None and self.num_in_flight < self._depth

    @property
    def num_in_flight(self) -> int:
        """The number of plans whose results were not taken yet."""
        return len(self._unanswered) + len(self._results)

    def dispatch(self, plan: SchedulerOutput) -> None:
        """Send a plan; results arrive in the order of the plans."""
        if not self._unanswered:
            self._watchdog.watch()
        self._unanswered.add(plan)
        message = encode_plan(plan, shares_params=self.shares_params, cancels_transfers=self._cancels_transfers)
        self._outbound.put_nowait(message)

    def take_results(self) -> list[ModelRunnerOutput]:
        """Return the results that have arrived since the last call."""
        results, self._results = self._results, []
        return results

    def encode(self, items: Sequence[tuple[MediaSpan, EncoderInput]]) -> None:
        """Send media items to encode."""
        self._encodings.add(span.identifier for span, _ in items)
        for message in encode_items(item for _, item in items):
            self._outbound.put_nowait(message)

    def take_encoder_events(self) -> EncoderEvents | None:
        """Return the items whose encoding has ended since the last call; None if there are none."""
        return self._encodings.take()

    def take_transfer_events(self) -> list[TransferEvents]:
        """Return the ends of transfers that have arrived since the last call."""
        events, self._transfer_events = self._transfer_events, []
        return events

    async def close(self) -> None:
        """End the stream, without an error if the worker answers within 1 s. The worker then forgets every request."""
        self._watchdog.close()
        self._encodings.close()
        if self._call is None:
            return
        self._writer.cancel()
        # All errors, also gRPC's internal one for an end beside a message that is still written: the call is cancelled anyway.
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._call.done_writing()
                await asyncio.wait([self._reader])
        self._reader.cancel()
        self._call.cancel()
        await asyncio.gather(self._reader, self._writer, return_exceptions=True)

    async def _write(self, call: grpc.aio.StreamStreamCall) -> None:
        """Send plans in order; when the stream breaks, the reader reports the reason."""
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            while True:
                await call.write(await self._outbound.get())

    async def _read(self, call: grpc.aio.StreamStreamCall) -> None:
        """Queue results until the stream ends; any other message from the worker is a loss."""
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                self._take(response)
            self._lose(Loss(Unavailable("The worker has ended the stream in good order; it is stopping."), is_crash=False))
        except grpc.RpcError as error:
            self._lose(_loss_of(error))
        except TetradError as error:
            self._lose(Loss(error, is_crash=True))
        except Exception as error:
            log.exception("executor.read_failed")
            self._lose(Loss(InternalError(f"The worker's result could not be read: {error}."), is_crash=True))

    def _take(self, response: worker_pb2.ExecuteResponse | None) -> None:
        if response is None:  # gRPC returns None for bytes that are not a message
            raise fault("it sent bytes that are no ExecuteResponse")
        if response.HasField("encoder_events"):
            self._encodings.note(decode_events(response.encoder_events))
            self._on_change()
            return
        if response.HasField("kv_events"):
            self._transfer_events.append(decode_transfer_events(response.kv_events))
            self._on_change()
            return
        if not response.HasField("output"):
            raise fault("it sent something other than a result")
        result = decode_result(response.output)
        self._unanswered.take(result)
        self._results.append(result)
        if self._unanswered:
            self._watchdog.watch()
        else:
            self._watchdog.rest()
        self._on_change()

    def _give_up_waiting(self, what: str) -> None:
        text = f"No {what} has come back for {self._step_timeout_s:g} s."
        self._lose(Loss(Unavailable(text, reason="STEP_TIMEOUT"), is_crash=True))

    def _lose(self, loss: Loss) -> None:
        """Record the loss of the worker; the first reason stays."""
        self.lost = self.lost or loss
        self._watchdog.rest()
        self._encodings.close()
        self._on_change()


def _loss_of(error: grpc.RpcError) -> Loss:
    mapped = from_rpc_error(error)
    if isinstance(mapped, FailedPrecondition):  # the worker serves another engine core, or its model was changed
        return Loss(mapped, is_crash=False)
    is_cut = error.code() in _CUT or error.details() == _HIDDEN
    return Loss(mapped, is_crash=None if is_cut else True, is_elsewhere=mapped.reason == "EXPERTS_LOST")
