"""EnginePool: the engine cores of one model, which of them gets the next request, and who goes on for one that stays away.

Knows engines and how well they are; knows nothing of sessions. A request is whole in itself: any engine can go on with it.
"""

import asyncio
from collections.abc import Callable

import grpc

from tetrad.frontend.engine_client import EngineClient
from tetrad.frontend.engine_client_outgoing import Unfinished
from tetrad.frontend.facts import EngineInfo
from tetrad.frontend.sequence import Sequence
from tetrad.services.errors import InvalidRequest, Unavailable
from tetrad.services.log import get_logger

log = get_logger()

# An engine that only restarts is back by then; what it computed is lost either way.
_TAKE_OVER_AFTER_S = 1.0
# Of several engines, those that are not there this long after the first are started without.
_LATECOMERS_S = 5.0


class EnginePool:
    """All engine cores.

    Args:
        engines: at least one; owned by the pool from now on.
        on_change: called when an engine was connected or lost, or has another problem.
        on_moved: called with each sequence that another engine goes on with, and that engine.
        take_over_after_s: how long an engine may be lost before its requests go to others.
    """

    def __init__(
        self,
        engines: list[EngineClient],
        *,
        on_change: Callable[[], None] = lambda: None,
        on_moved: Callable[[Sequence, EngineClient], None] = lambda _, __: None,
        take_over_after_s: float = _TAKE_OVER_AFTER_S,
    ) -> None:
        self.engines = engines
        self._next = 0
        self._notify = on_change
        self._on_moved = on_moved
        self._take_over_after_s = take_over_after_s
        self._timers: dict[EngineClient, asyncio.TimerHandle] = {}
        self._overdue: set[EngineClient] = set()
        self.num_losses = 0
        for engine in engines:
            engine.observer = self

    @property
    def info(self) -> EngineInfo:
        """What the first engine that answered said of itself last; Unavailable before one did."""
        info = next((engine.info for engine in self.engines if engine.info is not None), None)
        if info is None:
            raise Unavailable("No engine has answered yet.")
        return info

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output that every engine takes, in tokens."""
        return min(engine.info.max_model_len for engine in self.engines if engine.info is not None)

    @property
    def channels(self) -> list[grpc.aio.Channel]:
        """The connections to all engines, for calls that concern no request."""
        return [engine.channel for engine in self.engines]

    @property
    def num_add_messages(self) -> int:
        """AddRequests messages sent, since start."""
        return sum(engine.num_add_messages for engine in self.engines)

    def __len__(self) -> int:
        return len(self.engines)

    async def start(self) -> None:
        """Open the sessions and wait for the engines: for the first as long as it takes, then for the others a moment.

        Raises:
            FailedPrecondition: there can never be a session with one of them.
        """
        for engine in self.engines:
            engine.start()
        waiting = {asyncio.create_task(engine.wait_ready()) for engine in self.engines}
        try:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if waiting:
                also_done, waiting = await asyncio.wait(waiting, timeout=_LATECOMERS_S)
                done |= also_done
            for task in done:
                task.result()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def close(self) -> None:
        """End all sessions."""
        for timer in self._timers.values():
            timer.cancel()
        for engine in self.engines:
            engine.observer = None
            await engine.close()

    def choose(self, rank: int | None) -> EngineClient:
        """Return the engine for a request: the one at `rank`, else the least busy of the well, the connected, the expected.

        All n outputs of a request go to one engine: they share its prompt, so they share its prefix cache.
        """
        count = len(self.engines)
        if rank is not None:
            if not 0 <= rank < count:
                raise InvalidRequest(f"data_parallel_rank {rank} is out of range [0, {count}).", field="data_parallel_rank")
            return self.engines[rank]
        # A rotating start spreads requests over engines that are equally busy.
        start, self._next = self._next, (self._next + 1) % count
        order = self.engines[start:] + self.engines[:start]
        return min(order, key=_reluctance)

    def on_change(self) -> None:
        """Pass on that an engine was connected or lost, or has another problem."""
        for engine in self.engines:
            if engine.connected:
                self._overdue.discard(engine)
                if timer := self._timers.pop(engine, None):
                    timer.cancel()
        self._relieve()
        self._notify()

    def on_lost(self, engine: EngineClient) -> None:
        """Give its requests to other engines, if it is not back in a moment."""
        self.num_losses += 1
        if len(self.engines) > 1 and engine not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[engine] = loop.call_later(self._take_over_after_s, self._note_overdue, engine)

    def place_elsewhere(self, engine: EngineClient, requests: list[Unfinished]) -> bool:
        """Give requests that `engine` has no more to another one; False: there is none that would take them."""
        for request in requests:
            successor = self.choose(None)
            if successor is engine or not successor.connected or successor.problem:
                return False
            log.info("request.moved", request_id=request[0].request_id, target=successor.target)
            successor.take_over([request])
            self._on_moved(request[0], successor)
        return True

    def _note_overdue(self, engine: EngineClient) -> None:
        del self._timers[engine]
        self._overdue.add(engine)
        self._relieve()

    def _relieve(self) -> None:
        """Let others go on for the engines that have been away for too long, if any is well."""
        if any(each.connected and not each.problem for each in self.engines):
            for engine in self._overdue:
                # It stays overdue until it is back: when all were lost, new requests may have come to wait for it.
                self.place_elsewhere(engine, engine.release())


def _reluctance(engine: EngineClient) -> tuple[bool, bool, bool, int]:
    return not engine.connected, engine.given_up, bool(engine.problem), engine.num_unfinished
