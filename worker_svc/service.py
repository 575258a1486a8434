"""Service: builds the worker and serves it until it is stopped. Tests start it on a socket of their own."""

import asyncio
import os
import resource
import uuid
from functools import partial

from tetrad.services.log import get_logger
from tetrad.services.metrics import shown
from tetrad.services.profiling import StepProfiler, profile_directory
from tetrad.services.server import Server
from tetrad.services.tracer import open_tracer
from tetrad.v1 import worker_pb2_grpc
from tetrad.worker_svc.api.lifecycle import LifecycleServicer
from tetrad.worker_svc.api.servicer import WorkerServicer
from tetrad.worker_svc.api.trace_points import trace_points
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.devices import open_device
from tetrad.worker_svc.observability.metrics import WorkerMetrics
from tetrad.worker_svc.worker.collective import CollectiveMethods
from tetrad.worker_svc.worker.compute_thread import ComputeThread
from tetrad.worker_svc.worker.profiler import Profiler, TorchProfiler
from tetrad.worker_svc.worker.stuck_device import StuckDevice
from tetrad.worker_svc.worker.worker import Worker

log = get_logger()


class WorkerServer:
    """A worker behind its gRPC server."""

    def __init__(self, settings: WorkerSettings, worker: Worker, compute: ComputeThread) -> None:
        self._compute, self._waiting = compute, ComputeThread("waiting")
        self._tracer = open_tracer("worker", settings.otlp_endpoint)
        self.worker = worker
        self.metrics = WorkerMetrics(worker.snapshot)
        self.stuck = StuckDevice(settings.stuck_timeout_s)
        instance_id = uuid.uuid4().hex
        self._execute = execute = WorkerServicer(
            worker,
            compute,
            self._waiting,
            rank=settings.rank,
            instance_id=instance_id,
            max_queued_steps=settings.max_queued_steps,
            stuck=self.stuck,
            metrics=self.metrics,
            tracer=self._tracer,
        )
        lifecycle = LifecycleServicer(
            worker,
            compute,
            rank=settings.rank,
            instance_id=instance_id,
            max_message_bytes=settings.max_message_bytes,
            profiler=_profiler(settings),
            methods=_collective_methods(worker),
            health=lambda: self.server.health,
        )
        self.server = Server(
            settings,
            {
                "tetrad.v1.WorkerService": lambda s: worker_pb2_grpc.add_WorkerServiceServicer_to_server(execute, s),
                "tetrad.v1.WorkerLifecycleService": lambda s: worker_pb2_grpc.add_WorkerLifecycleServiceServicer_to_server(
                    lifecycle, s
                ),
            },
        )

    @classmethod
    async def start(cls, settings: WorkerSettings) -> "WorkerServer":
        """Open the device, load the model that the settings name, if any, and serve.

        Raises NotFound or ModelError for a model that cannot be loaded.
        """
        compute = ComputeThread()
        try:
            # Devices are opened where they are used: torch's thread count belongs to a thread.
            worker = await compute.submit(lambda: Worker(open_device(settings)))
            if settings.model is not None:
                await compute.submit(worker.load_model, settings.model, _report_nothing)
            served = cls(settings, worker, compute)
            await served.server.start()
        except BaseException:
            compute.close()
            raise
        return served

    async def stop(self) -> None:
        """Drain and stop: steps under way are answered. Requests are the engine core's: it moves them to another worker."""
        await self.server.drain(self._execute.drain)
        self._compute.close()
        self._waiting.close()
        await asyncio.to_thread(self._tracer.close)


async def serve(settings: WorkerSettings, shutdown: asyncio.Event) -> None:
    """Serve until `shutdown` is set; InternalError if the device is stuck: the process is of no more use."""
    served = await WorkerServer.start(settings)
    with shown(served.metrics.registry):
        await _serve(served, shutdown)


async def _serve(served: WorkerServer, shutdown: asyncio.Event) -> None:
    stuck = asyncio.create_task(served.stuck.wait())
    stopping = asyncio.create_task(shutdown.wait())
    try:
        await asyncio.wait({stuck, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if stuck.done():
            stuck.result()
        await served.stop()
    finally:
        stuck.cancel()
        stopping.cancel()


def _profiler(settings: WorkerSettings) -> Profiler:
    directory = profile_directory(settings.profile_dir)
    if settings.device == "sim":
        return StepProfiler("worker", directory, partial(trace_points, "sim"))
    return TorchProfiler(directory)


def _report_nothing(done: int, total: int) -> None:
    """Progress of a load that nobody watches."""


def _collective_methods(worker: Worker) -> CollectiveMethods:
    def peak_memory_bytes() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    return CollectiveMethods(
        {
            "get_pid": os.getpid,
            "get_num_requests": lambda: worker.snapshot().num_requests,
            "get_peak_memory_bytes": peak_memory_bytes,
        }
    )
