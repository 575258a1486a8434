"""EnginePool: the engine cores of one model; chooses one for each request, and another one for requests of a lost engine core.

Knows engine cores and their health; knows nothing of sessions. Discovery adds and removes engine cores; the router chooses
among the healthy ones. A request is complete in itself: any engine core can continue it.
"""

import asyncio
from collections.abc import Callable

from tetrad.frontend.engine.client import EngineClient
from tetrad.frontend.engine.client_sequence import ActiveSequence
from tetrad.frontend.engine.facts import EngineInfo
from tetrad.frontend.net.discovery import Discovery, Endpoint, fixed_endpoints
from tetrad.frontend.request.sequence import Sequence
from tetrad.frontend.routing.member import Member
from tetrad.frontend.routing.ranks import Ranks
from tetrad.frontend.routing.router import Router
from tetrad.services.errors import TetradError, Unavailable
from tetrad.services.log import get_logger

log = get_logger()

# An engine that only restarts is back by then; what it computed is lost either way.
_TAKE_OVER_AFTER_S = 1.0
# Of several engines, those that are not there this long after the first are started without.
_LATECOMERS_S = 5.0
# One that speaks another contract is tried again this much later: an upgrade replaces one after the other.
_UNUSABLE_S = 5.0


class EnginePool:
    """All engine cores.

    Args:
        discovery: finds them; owned by the pool from now on.
        join: makes a member of an endpoint; it is closed by the pool.
        router: chooses among those that are well.
        on_change: called when an engine was connected or lost, came or went, or has another problem.
        on_moved: called with each sequence that another engine goes on with, and that engine.
        take_over_after_s: how long an engine may be lost before its requests go to others.
    """

    def __init__(
        self,
        discovery: Discovery,
        join: Callable[[Endpoint], Member],
        router: Router,
        *,
        on_change: Callable[[], None] = lambda: None,
        on_moved: Callable[[Sequence, EngineClient], None] = lambda _, __: None,
        take_over_after_s: float = _TAKE_OVER_AFTER_S,
    ) -> None:
        self.discovery = discovery
        self._join = join
        self._router = router
        self._ranks = Ranks()
        self._members: list[Member] = []
        self._notify = on_change
        self._on_moved = on_moved
        self._take_over_after_s = take_over_after_s
        self._timers: dict[EngineClient, asyncio.TimerHandle] = {}
        self._overdue: set[EngineClient] = set()
        self._first_ready: asyncio.Future[None] | None = None
        self._starting: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self.num_losses = 0
        self._last_max_model_len = 0
        for endpoint in discovery.endpoints:
            self._add(endpoint)

    @property
    def engines(self) -> list[EngineClient]:
        """All engine cores, in the order that pinned requests count by."""
        return [member.engine for member in self._members]

    @property
    def info(self) -> EngineInfo:
        """The last description of the first engine core that answered; Unavailable before any answer."""
        info = next((engine.info for engine in self.engines if engine.info is not None), None)
        if info is None:
            raise Unavailable("No engine has answered yet.")
        return info

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output that every engine takes, in tokens; while there is none, as before."""
        known = [engine.info.max_model_len for engine in self.engines if engine.info is not None]
        return min(known, default=self._last_max_model_len)

    def admin_endpoints(self, targets: tuple[str, ...]) -> list[Endpoint]:
        """Return the admin ports among `targets` that are known now: first the engines' own, in their order."""
        own = [admin for member in self._members if (admin := member.endpoint.on_port_of(targets)) is not None]
        return own + [each for each in fixed_endpoints(targets) if each not in own]

    def __len__(self) -> int:
        return len(self._members)

    async def start(self) -> None:
        """Find the engines and open the sessions: wait for the first as long as it takes, then for the others a moment.

        Raises:
            FailedPrecondition: there can never be a session with the first that answers.
        """
        self._first_ready = asyncio.get_running_loop().create_future()
        for member in self._members:
            self._start(member.engine)
        self.discovery.start(self._take_round)
        await self._first_ready
        if self._starting:
            await asyncio.wait(self._starting, timeout=_LATECOMERS_S)

    async def close(self) -> None:
        """End all sessions."""
        await self.discovery.close()
        for timer in self._timers.values():
            timer.cancel()
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, *self._closing, return_exceptions=True)
        for member in self._members:
            member.engine.observer = None
            await member.close()

    # --- members ----------------------------------------------------------------------------------------------------

    def _take_round(self, endpoints: list[Endpoint]) -> None:
        """Apply a discovery: new engine cores join, missing ones get no more requests."""
        known = {member.endpoint for member in self._members}
        for endpoint in endpoints:
            if endpoint not in known:
                self._start(self._add(endpoint).engine)
        present = set(endpoints)
        for member in self._members:
            if member.is_gone is not (member.endpoint not in present):
                member.is_gone = not member.is_gone
                log.info("engine.gone" if member.is_gone else "engine.back", target=member.endpoint.target)
        self.on_change()

    def _add(self, endpoint: Endpoint) -> Member:
        member = self._join(endpoint)
        # As many as another has: it owes no one the prefixes that came before it.
        member.prefixes.num_new = min((each.prefixes.num_new for each in self._members), default=0)
        member.engine.observer = self
        self._members.append(member)
        return member

    def _start(self, engine: EngineClient) -> None:
        engine.start()
        _keep(self._starting, asyncio.create_task(self._wait_ready(engine)))

    async def _wait_ready(self, engine: EngineClient) -> None:
        """Tell `start` when an engine is ready, or cannot be; try the latter again if `start` has another one."""
        assert self._first_ready is not None
        try:
            await engine.wait_ready()
        except TetradError as error:
            log.error("engine.unusable", target=engine.target, reason=str(error))
            if not self._first_ready.done():
                self._first_ready.set_exception(error)
            else:
                self._timers[engine] = asyncio.get_running_loop().call_later(_UNUSABLE_S, self._start_again, engine)
            return
        if not self._first_ready.done():
            self._first_ready.set_result(None)

    def _start_again(self, engine: EngineClient) -> None:
        del self._timers[engine]
        self._start(engine)

    def _let_go(self) -> None:
        """Part with those whose names no longer stand for them, as soon as nothing is lost by that."""
        for member in [each for each in self._members if each.is_gone]:
            engine = member.engine
            if not engine.connected and any(each.is_well for each in self._members):
                self.place_elsewhere(engine, engine.release())
            if not engine.num_unfinished:
                self._last_max_model_len = self.max_model_len
                self._members.remove(member)
                if timer := self._timers.pop(engine, None):
                    timer.cancel()
                self._overdue.discard(engine)
                engine.observer = None
                _keep(self._closing, asyncio.create_task(member.close()))
                log.info("engine.let_go", target=engine.target)

    # --- routing ----------------------------------------------------------------------------------------------------

    def choose(self, rank: int | None, token_ids: bytes = b"", cache_salt: str = "", lora_name: str = "") -> EngineClient:
        """Return the engine for a request: the one at `rank`, else one of the well, the connected, the expected.

        All n outputs of a request go to one engine: they share its prompt, so they share its prefix cache.

        Args:
            rank: of the engine that the request is pinned to.
            token_ids: the prompt, a u32 column.
            cache_salt: only requests with the same one share prefixes.
            lora_name: the adapter that it runs with; empty: the base model.
        """
        if rank is not None:
            return self._ranks.find(self._members, rank).engine
        if not self._members:
            raise Unavailable(f"No engine core is known: {self.discovery.problem}.", retry_after_s=1.0)
        least = min(member.reluctance for member in self._members)
        candidates = [each for each in self._members if each.reluctance == least]
        return self._router.choose(candidates, token_ids, cache_salt, lora_name).engine

    def on_change(self) -> None:
        """Take in that an engine was connected or lost, came or went, or has another problem; and pass it on."""
        for member in self._members:
            member.note_connected()
            if member.engine.connected:
                self._overdue.discard(member.engine)
                if timer := self._timers.pop(member.engine, None):
                    timer.cancel()
        self._members.sort(key=lambda member: member.place)
        self._ranks.note(self._members)
        self._relieve()
        self._let_go()
        self._notify()

    def on_lost(self, engine: EngineClient) -> None:
        """Give its requests to other engines: at once if it was leaving, else if it is not back in a moment."""
        self.num_losses += 1
        self.discovery.look_again()
        if engine in self._timers:
            return
        after_s = 0.0 if engine.is_draining else self._take_over_after_s
        self._timers[engine] = asyncio.get_running_loop().call_later(after_s, self._note_overdue, engine)

    def place_elsewhere(self, engine: EngineClient, requests: list[ActiveSequence]) -> bool:
        """Give requests that `engine` has no more to another one; False: there is none that would take them."""
        for each in requests:
            sequence = each.sequence
            others = [member for member in self._members if member.is_well and member.engine is not engine]
            if not others:
                return False
            successor = self._router.choose(
                others, each.known_prompt, each.message.cache_salt, each.message.lora_request.name
            ).engine
            log.info("request.moved", **sequence.span.context.log_fields(sequence.request_id), target=successor.target)
            successor.add(each)
            self._on_moved(sequence, successor)
        return True

    def _note_overdue(self, engine: EngineClient) -> None:
        del self._timers[engine]
        self._overdue.add(engine)
        self._relieve()

    def _relieve(self) -> None:
        """Let others go on for the engines that have been away for too long, if any is well."""
        if any(member.is_well for member in self._members):
            for engine in self._overdue:
                # It stays overdue until it is back: after a loss of all engine cores, new requests may wait for it.
                self.place_elsewhere(engine, engine.release())


def _keep(tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
    """Hold a task until it is done."""
    tasks.add(task)
    task.add_done_callback(tasks.discard)
