"""EnginePool: keeps the engine cores of one model and chooses one for each request, also for requests of a lost engine core.

Knows engine cores and their health; knows nothing of sessions. Discovery adds and removes engine cores; the router chooses
among the healthy ones. A request contains all its state: any engine core can continue it.
"""

import asyncio
import functools
import itertools
import operator
from collections.abc import Callable, Container, Iterable

from tetrad.frontend.engine.client import EngineClient
from tetrad.frontend.engine.client_sequence import ActiveSequence
from tetrad.frontend.engine.facts import EngineInfo, KvRole
from tetrad.frontend.media.features import MediaFeature
from tetrad.frontend.net.discovery import Discovery, Endpoint, fixed_endpoints
from tetrad.frontend.request.kv_transfer import KvTransfer
from tetrad.frontend.request.sequence import Sequence
from tetrad.frontend.routing.member import Member, can_do, missing_role, preferred
from tetrad.frontend.routing.placement import Placement
from tetrad.frontend.routing.ranks import Ranks
from tetrad.frontend.routing.router import Router
from tetrad.services.errors import TetradError, Unavailable
from tetrad.services.log import get_logger

log = get_logger()

# Seconds: an engine core that only restarts is back by then; its computed state is lost in both cases.
_TAKE_OVER_AFTER_S = 1.0
# Seconds after the first connection for which the start waits for the other engine cores.
_LATECOMERS_S = 5.0
# Seconds until an engine core with another contract revision is tried again: an upgrade replaces one after the other.
_UNUSABLE_S = 5.0


class EnginePool:
    """All engine cores of one model.

    Args:
        discovery: finds the engine cores; the pool owns and closes it.
        join: makes the member of an endpoint; the pool closes it.
        router: chooses among the healthy members.
        on_change: called when an engine core was connected, lost, added or removed, or its problem changed.
        on_moved: called with each sequence that another engine core continues, and that engine core's client.
        take_over_after_s: seconds after which the requests of a lost engine core are sent to others.
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
        self._last_info: EngineInfo | None = None
        for endpoint in discovery.endpoints:
            self._add(endpoint)

    @property
    def engines(self) -> list[EngineClient]:
        """The clients of all engine cores, in the order of their positions."""
        return [member.engine for member in self._members]

    @property
    def info(self) -> EngineInfo:
        """The latest facts of the first engine core that has answered; without any, those of the last one that has left.

        Unavailable before any answer.
        """
        info = next((engine.info for engine in self.engines if engine.info is not None), self._last_info)
        if info is None:
            raise Unavailable("No engine has answered yet.")
        return info

    @property
    def max_model_len(self) -> int:
        """The largest length of prompt plus output, in tokens, that every engine core accepts; without any, the last value."""
        known = [engine.info.max_model_len for engine in self.engines if engine.info is not None]
        return min(known, default=self._last_max_model_len)

    @property
    def has_producers(self) -> bool:
        """Whether an engine core has the role producer; it may be lost."""
        return any(member.role is KvRole.PRODUCER for member in self._members)

    @property
    def kv_role(self) -> KvRole:
        """What the engine cores together do with KV blocks of prompts: BOTH if some send them and some read them."""
        return KvRole(functools.reduce(operator.or_, (member.role for member in self._members), KvRole.NONE))

    def admin_endpoints(self, targets: tuple[str, ...]) -> list[Endpoint]:
        """Return the presently known admin ports of `targets`: first those of the members, in their order."""
        own = [admin for member in self._members if (admin := member.endpoint.on_port_of(targets)) is not None]
        return own + [each for each in fixed_endpoints(targets) if each not in own]

    def admin_ranks(self, targets: tuple[str, ...]) -> list[int]:
        """Return the rank of each of `admin_endpoints`: that of pinned requests, or for one without a rank an unused number."""
        pairs = zip(self._members, self._ranks.of(self._members), strict=True)
        own = [rank for member, rank in pairs if member.endpoint.on_port_of(targets) is not None]
        unused = (number for number in itertools.count() if number not in own)
        own += [None] * (len(self.admin_endpoints(targets)) - len(own))
        return [next(unused) if rank is None else rank for rank in own]

    def absent_ranks(self, targets: tuple[str, ...]) -> frozenset[int]:
        """Return those of `admin_ranks` whose engine cores are not connected."""
        members = [member for member in self._members if member.endpoint.on_port_of(targets) is not None]
        pairs = zip(self.admin_ranks(targets), members, strict=False)  # the members' ranks come first
        return frozenset(rank for rank, member in pairs if not member.engine.connected)

    def __len__(self) -> int:
        return len(self._members)

    async def start(self) -> None:
        """Find the engine cores and open the sessions; wait for the first without limit, then for the others a few seconds.

        Raises:
            FailedPrecondition: the first engine core that answers can never be used.
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
        """Apply the result of a discovery: add new engine cores, and send no more requests to missing ones."""
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
        # The new member starts with the lowest count of the others: it need not catch up on prefixes routed before it joined.
        member.prefixes.num_new = min((each.prefixes.num_new for each in self._members), default=0)
        member.engine.observer = self
        self._members.append(member)
        return member

    def _start(self, engine: EngineClient) -> None:
        engine.start()
        _keep(self._starting, asyncio.create_task(self._wait_ready(engine)))

    async def _wait_ready(self, engine: EngineClient) -> None:
        """Report to `start` that an engine core is ready or unusable; retry an unusable one if `start` has a result already."""
        assert self._first_ready is not None
        try:
            await engine.wait_ready()
        except TetradError as error:
            log.error("engine.unusable", target=engine.target, reason=str(error))
            if not self._first_ready.done():
                self._first_ready.set_exception(error)
            elif engine in self.engines:  # else it was removed meanwhile, and its connections are closed
                self._timers[engine] = asyncio.get_running_loop().call_later(_UNUSABLE_S, self._start_again, engine)
            return
        if not self._first_ready.done():
            self._first_ready.set_result(None)

    def _start_again(self, engine: EngineClient) -> None:
        del self._timers[engine]
        self._start(engine)

    def _let_go(self) -> None:
        """Remove the members that are gone as soon as they have no requests; those of a lost one are sent to others."""
        for member in [each for each in self._members if each.is_gone]:
            engine = member.engine
            if not engine.connected and any(each.is_healthy for each in self._members):
                self.place_elsewhere(engine, engine.release())
            if not engine.num_unfinished:
                self._last_max_model_len = self.max_model_len
                self._last_info = engine.info or self._last_info
                self._members.remove(member)
                if timer := self._timers.pop(engine, None):
                    timer.cancel()
                self._overdue.discard(engine)
                engine.observer = None
                engine.stop()  # at once: a request that is being prepared for it must notice
                _keep(self._closing, asyncio.create_task(member.close()))
                log.info("engine.let_go", target=engine.target)

    # --- routing ----------------------------------------------------------------------------------------------------

    def choose(
        self,
        rank: int | None,
        token_ids: bytes = b"",
        cache_salt: str = "",
        lora_name: str = "",
        features: tuple[MediaFeature, ...] = (),
        transfer: KvTransfer | None = None,
    ) -> Placement:
        """Return the engine core for a request: the one at `rank`, else a healthy one, else a connected one, else any.

        All n outputs of a request go to one engine core, because they share the prompt and so its cached blocks.

        Args:
            rank: rank of the engine core that the request is pinned to; None: it is not pinned.
            token_ids: the prompt as a u32 column.
            cache_salt: only requests with the same salt share prefixes.
            lora_name: the adapter of the request; empty: the base model.
            features: the images of the prompt.
            transfer: what the engine core does with the prompt's KV blocks; only engine cores with the role for it are chosen.

        Raises:
            UnsupportedArgument: no engine core has the role that `transfer` needs.
            Unavailable: no engine core is known.
        """
        if rank is not None:
            pinned = self._ranks.find(self._members, rank)
            if not can_do(pinned.role, transfer):
                raise missing_role(transfer, rank)
            return Placement(pinned.engine)
        if not self._members:
            raise Unavailable(f"No engine core is known: {self.discovery.problem}.", retry_after_s=1.0)
        able = [each for each in self._members if can_do(each.role, transfer)]
        if not able:
            raise missing_role(transfer)
        least = min(member.health_order for member in able)
        candidates = preferred([each for each in able if each.health_order == least], transfer)
        chosen, num_held = self._router.place(candidates, token_ids, cache_salt, lora_name, features)
        return Placement(chosen.engine, num_held)

    def send(self, placement: Placement, active: Iterable[ActiveSequence]) -> None:
        """Send the sequences of one request to the chosen engine core; see Dispatch."""
        for each in active:
            placement.engine.add(each)

    def choose_producer(
        self,
        token_ids: bytes,
        cache_salt: str,
        lora_name: str,
        features: tuple[MediaFeature, ...],
        avoided: Container[EngineClient] = (),
    ) -> EngineClient | None:
        """Return a healthy engine core of the role producer for a prompt; None: there is none, or only `avoided` ones.

        Further arguments: see `choose`.
        """
        healthy = [each for each in self._members if each.role is KvRole.PRODUCER and each.is_healthy]
        producers = [each for each in healthy if each.engine not in avoided]
        if not producers:
            return None
        return self._router.choose(producers, token_ids, cache_salt, lora_name, features).engine

    def check_transfer(self, transfer: KvTransfer) -> None:
        """Raise UnsupportedArgument if no engine core has the role that a KV transfer needs."""
        if not any(can_do(each.role, transfer) for each in self._members):
            raise missing_role(transfer)

    def on_change(self) -> None:
        """Update the pool after an engine core was connected, lost, added or removed, or its problem changed."""
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
        """Send the requests of a lost engine core to others: at once if it was draining, else if it does not return soon."""
        self.num_losses += 1
        self.discovery.look_again()
        if engine in self._timers:
            return
        after_s = 0.0 if engine.is_draining else self._take_over_after_s
        self._timers[engine] = asyncio.get_running_loop().call_later(after_s, self._note_overdue, engine)

    def on_given_up(self, engine: EngineClient) -> None:
        """Send the requests of a lost engine core to others now, without waiting for its return."""
        if timer := self._timers.pop(engine, None):
            timer.cancel()
        self._overdue.add(engine)
        self._relieve()

    def place_elsewhere(self, engine: EngineClient, requests: list[ActiveSequence]) -> bool:
        """Send requests that `engine` no longer has to healthy engine cores; return False if there is none."""
        for each in requests:
            sequence = each.sequence
            others = [member for member in self._members if member.is_healthy and member.engine is not engine]
            if not others:
                return False
            salt, lora_name = each.message.cache_salt, each.message.lora_request.name
            transfer = each.message.kv_transfer if each.message.HasField("kv_transfer") else None
            chosen = self._router.choose(preferred(others, transfer), each.known_prompt, salt, lora_name, each.features)
            successor = chosen.engine
            log.info("request.moved", **sequence.span.context.log_fields(sequence.request_id), target=successor.target)
            if not can_do(chosen.role, transfer):
                # It computes the prompt itself: the tokens are the same.
                each.message.ClearField("kv_transfer")
            successor.add(each)
            self._on_moved(sequence, successor)
        return True

    def _note_overdue(self, engine: EngineClient) -> None:
        del self._timers[engine]
        self._overdue.add(engine)
        self._relieve()

    def _relieve(self) -> None:
        """Move requests to healthy engine cores, if there are any.

        They are the requests of engine cores that have been lost for too long, and those that draining ones have refused.
        """
        for engine in self.engines:
            if any(member.is_healthy and member.engine is not engine for member in self._members):
                # It stays overdue until it returns: after a loss of all engine cores, new requests may wait for it.
                released = engine.release() if engine in self._overdue else engine.release_refused()
                self.place_elsewhere(engine, released)


def _keep(tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
    """Keep a reference to a task until it is done."""
    tasks.add(task)
    task.add_done_callback(tasks.discard)
