"""Service: builds the worker and serves it until it is stopped. Tests start it on a separate socket."""

import asyncio
import os
import resource
import sys
import uuid
from collections.abc import Callable
from functools import partial

import grpc

from tetrad.services.errors import FailedPrecondition
from tetrad.services.log import get_logger
from tetrad.services.observability.metrics import shown
from tetrad.services.observability.profiling import StepProfiler, profile_directory
from tetrad.services.observability.tracer import open_tracer
from tetrad.services.rpc.carrier import GRPC, Carrier
from tetrad.services.rpc.server import Server
from tetrad.v1 import worker_pb2_grpc
from tetrad.worker_svc.api.kv_read_servicer import KvTransferServicer
from tetrad.worker_svc.api.kv_transfers import StreamTransfers
from tetrad.worker_svc.api.lifecycle import LifecycleServicer
from tetrad.worker_svc.api.peer_client import PeerClient
from tetrad.worker_svc.api.servicer import WorkerServicer
from tetrad.worker_svc.api.trace_points import trace_points
from tetrad.worker_svc.api.wire import capabilities_of
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.devices import import_processors, open_device
from tetrad.worker_svc.observability.metrics import WorkerMetrics
from tetrad.worker_svc.worker.collective import CollectiveMethods
from tetrad.worker_svc.worker.compute_thread import ComputeThread
from tetrad.worker_svc.worker.functions import function_methods
from tetrad.worker_svc.worker.lost_device import LostDevice
from tetrad.worker_svc.worker.profile_window import ProfileWindow
from tetrad.worker_svc.worker.profiler import Profiler, TorchProfiler
from tetrad.worker_svc.worker.worker import Worker

_ENCODER_NICENESS = 5
"""Added to the niceness of the thread that encodes images: steps, which other requests wait for, come first."""
_ENCODER_TIMEOUT_S = 1.0

log = get_logger()


class WorkerServer:
    """A worker that the server of a carrier serves."""

    def __init__(self, settings: WorkerSettings, worker: Worker, compute: ComputeThread, carrier: Carrier) -> None:
        self._compute, self._waiting = compute, ComputeThread("waiting")
        self._encoding = ComputeThread("encoder", niceness=_ENCODER_NICENESS)
        self._copying = copying = ComputeThread("transfer")
        self._tracer = open_tracer("worker", settings.otlp_endpoint)
        self.worker = worker
        self.metrics = WorkerMetrics(worker.snapshot)
        self.lost_device = LostDevice(settings.stuck_timeout_s)
        instance_id = uuid.uuid4().hex
        capabilities = partial(capabilities_of, worker)
        profiler = ProfileWindow(_profiler(settings))
        self._execute = execute = WorkerServicer(
            worker,
            compute,
            self._waiting,
            self._encoding,
            rank=settings.rank,
            instance_id=instance_id,
            capabilities=capabilities,
            max_queued_steps=settings.max_queued_steps,
            open_transfers=partial(_open_transfers, worker, copying, partial(carrier.connect, tls=settings.tls)),
            lost_device=self.lost_device,
            note_step=profiler.note_step,
            metrics=self.metrics,
            tracer=self._tracer,
        )
        self._lifecycle = lifecycle = LifecycleServicer(
            worker,
            compute,
            rank=settings.rank,
            instance_id=instance_id,
            capabilities=capabilities,
            logits_processors=settings.logits_processors,
            max_message_bytes=settings.max_message_bytes,
            profiler=profiler,
            methods=_collective_methods(worker, settings),
            lost_device=self.lost_device,
            health=lambda: self.server.health,
        )
        reads = KvTransferServicer(worker.cache.exchange, lambda: worker.cache.fingerprint, copying)
        self.server = Server(
            settings,
            {
                "tetrad.v1.KvTransferService": lambda s: worker_pb2_grpc.add_KvTransferServiceServicer_to_server(reads, s),
                "tetrad.v1.WorkerService": lambda s: worker_pb2_grpc.add_WorkerServiceServicer_to_server(execute, s),
                "tetrad.v1.WorkerLifecycleService": lambda s: worker_pb2_grpc.add_WorkerLifecycleServiceServicer_to_server(
                    lifecycle, s
                ),
            },
            carrier=carrier,
        )

    @classmethod
    async def start(cls, settings: WorkerSettings, carrier: Carrier = GRPC) -> "WorkerServer":
        """Open the device, load the model that the settings name, if any, and serve.

        Raises NotFound or ModelError for a model that cannot be loaded, FailedPrecondition if functions of a program may run
        and the address is not a Unix socket, or if a custom logits processor cannot be used.
        """
        if settings.allow_functions and not settings.listen.startswith("unix:"):
            raise FailedPrecondition(
                f"allow_functions needs a Unix socket, got listen {settings.listen}: others could run code here."
            )
        compute = ComputeThread()
        try:
            # The thread that uses the device opens it: torch's number of threads is a setting of the thread.
            worker = await compute.submit(_open_worker, settings)
            if settings.model is not None:
                await compute.submit(worker.load_model, settings.model, _report_nothing)
            served = cls(settings, worker, compute, carrier)
            await served.server.start()
        except BaseException:
            compute.close()
            raise
        return served

    async def stop(self) -> bool:
        """Drain and stop: running steps are answered. The engine core moves its requests to another worker.

        Returns:
            Whether no thread is left in native code; otherwise the interpreter cannot exit normally.
        """
        await self.server.drain(self._execute.drain)
        has_ended = await self._lifecycle.leave_group() and await self._has_encoded()
        self._compute.close()
        self._waiting.close()
        self._encoding.close()
        self._copying.close()
        await asyncio.to_thread(self._tracer.close)
        return has_ended

    async def _has_encoded(self) -> bool:
        """Wait a moment for an image that is being encoded; return whether the encoder thread is idle."""
        try:
            async with asyncio.timeout(_ENCODER_TIMEOUT_S):
                await self._encoding.submit(_do_nothing)
        except TimeoutError:
            return False
        return True


async def serve(settings: WorkerSettings, shutdown: asyncio.Event, *, carrier: Carrier = GRPC) -> None:
    """Serve the calls of a carrier until `shutdown` is set.

    Raises InternalError if the device is lost: this process can no longer use it.
    """
    served = await WorkerServer.start(settings, carrier)
    with shown(served.metrics.registry):
        await _serve(served, shutdown)


async def _serve(served: WorkerServer, shutdown: asyncio.Event) -> None:
    lost = asyncio.create_task(served.lost_device.wait())
    stopping = asyncio.create_task(shutdown.wait())
    try:
        await asyncio.wait({lost, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            lost.result()
        if not await served.stop():
            # The thread of a member waits for the leader, or an image is encoded: native code cannot be interrupted.
            log.info("worker.ended_while_following")
            sys.stderr.flush()
            os._exit(0)
    finally:
        lost.cancel()
        stopping.cancel()


def _open_transfers(
    worker: Worker, thread: ComputeThread, connect: Callable[[str], grpc.aio.Channel], stream_id: int
) -> StreamTransfers:
    layout = worker.snapshot().layout
    num_blocks = 0 if layout is None else layout.num_blocks
    return StreamTransfers(worker.cache.exchange, stream_id, num_blocks, thread, PeerClient(connect, worker.cache.fingerprint))


def _profiler(settings: WorkerSettings) -> Profiler:
    directory = profile_directory(settings.profile_dir)
    if settings.device == "sim":
        return StepProfiler("worker", directory, partial(trace_points, "sim"))
    return TorchProfiler(directory)


def _open_worker(settings: WorkerSettings) -> Worker:
    device = open_device(settings)
    return Worker(
        device,
        trusts_code=settings.trust_remote_code,
        takes_media=not settings.language_model_only,
        processor_kwargs_json=settings.mm_processor_kwargs,
        logits_processors=import_processors(settings.logits_processors),
    )


def _report_nothing(done: int, total: int) -> None:
    """Ignore the progress of a load that no client requested."""


def _do_nothing() -> None:
    """Do nothing: as a queued call, this ends after all earlier calls have ended."""


def _collective_methods(worker: Worker, settings: WorkerSettings) -> CollectiveMethods:
    def peak_memory_bytes() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    return CollectiveMethods(
        {
            "get_pid": os.getpid,
            "get_num_requests": lambda: worker.snapshot().num_requests,
            "get_peak_memory_bytes": peak_memory_bytes,
            **function_methods(worker, are_allowed=settings.allow_functions),
        }
    )
