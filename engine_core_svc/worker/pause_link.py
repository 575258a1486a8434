"""Pause link: stores an operator's pause in the worker, so that the next engine core is paused, too.

Called by the admin service after a command, and by the worker link for each worker that it connects. The worker is the only
peer that outlives its engine core; if both end together, the pause is lost. Knows nothing of scheduling.
"""

import asyncio

import grpc

from tetrad.engine_core_svc.worker.group import Pause
from tetrad.services.log import get_logger
from tetrad.services.rpc.status import from_rpc_error
from tetrad.v1 import worker_pb2, worker_pb2_grpc

_ANSWER_TIMEOUT_S = 2.0

log = get_logger()


class PauseLink:
    """The pause that the worker stores.

    Args:
        stub: stub of the worker's lifecycle service.

    Attributes:
        pause: the stored pause; None: no worker was connected yet.
    """

    def __init__(self, stub: worker_pb2_grpc.WorkerLifecycleServiceStub) -> None:
        self.pause: Pause | None = None
        self._stub = stub
        self._sending = asyncio.Lock()  # sends one pause at a time, in the order of the commands

    async def meet(self, info: worker_pb2.WorkerLifecycleServiceGetInfoResponse) -> None:
        """Adopt the pause that the first worker stores; make every later worker store that of this engine core."""
        kept = Pause(info.engine_pause.paused, info.engine_pause.finish_running)
        if self.pause is None:
            self.pause = kept
        elif kept != self.pause:
            await self.keep(self.pause)

    async def keep(self, pause: Pause) -> None:
        """Make the worker store this pause. A lost worker gets it when it is connected again."""
        self.pause = pause
        async with self._sending:
            message = worker_pb2.EnginePause(paused=self.pause.is_paused, finish_running=self.pause.finishes_running)
            try:
                await self._stub.KeepPause(worker_pb2.KeepPauseRequest(pause=message), timeout=_ANSWER_TIMEOUT_S)
            except grpc.RpcError as error:
                log.warning("pause.not_kept", error=from_rpc_error(error).message)
