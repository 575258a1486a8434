"""Member: one engine core of the pool with its routing facts. Owned by the engine pool; implements the router's Candidate.

Its role (--kv-role) states which requests it may run, and which it should: a producer also generates if there is no other
engine core, but a request with a KV transfer needs a role that can do it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tetrad.frontend.engine.client import EngineClient
from tetrad.frontend.engine.facts import KvRole
from tetrad.frontend.net.discovery import Endpoint
from tetrad.frontend.request.kv_transfer import KV_TRANSFER_PARAMS
from tetrad.frontend.routing.adapter_memory import AdapterMemory
from tetrad.frontend.routing.kv_events_client import KvEventsClient
from tetrad.frontend.routing.prefix_memory import PrefixMemory
from tetrad.services.errors import UnsupportedArgument


@dataclass(eq=False, slots=True)
class Member:
    """One engine core of the pool.

    Attributes:
        endpoint: its address.
        engine: the client with its sessions and requests.
        events: subscription to its KV events; None: its admin port is unknown.
        prefixes: the prefixes that it holds.
        adapters: the adapters that it has loaded.
        is_gone: whether discovery no longer finds it: it gets no new requests, and is removed when it is lost or has none left.
    """

    endpoint: Endpoint
    engine: EngineClient
    prefixes: PrefixMemory
    events: KvEventsClient | None
    adapters: AdapterMemory = field(default_factory=AdapterMemory)
    is_gone: bool = False
    _epoch: int = field(default=0, init=False)

    @property
    def identity(self) -> bytes:
        """The identity of the engine core, equal in all frontends; before the first connection, its address."""
        return str(self._epoch).encode() if self._epoch else self.endpoint.target.encode()[:64]

    @property
    def num_requests(self) -> int:
        """The number of its requests."""
        return self.engine.load.num_requests(self.engine.num_unfinished)

    @property
    def kv_cache_usage(self) -> float:
        """The share of its KV blocks in use, 0 to 1."""
        return self.engine.load.kv_cache_usage

    def has_adapter(self, name: str) -> bool:
        """Return whether the engine core has probably loaded an adapter."""
        return self.adapters.has(name, self.engine.load.running_loras)

    @property
    def own_rank(self) -> int | None:
        """The engine core's --data-parallel-rank; None before its first connection."""
        return None if self.engine.info is None else self.engine.info.engine_index

    @property
    def role(self) -> KvRole:
        """The engine core's --kv-role; none before its first connection."""
        return KvRole.NONE if self.engine.info is None else self.engine.info.kv_role

    @property
    def place(self) -> tuple[int, int, str]:
        """The sort key of its position: position of its target, its own rank, its address."""
        return self.endpoint.place, self.own_rank or 0, self.endpoint.target

    @property
    def is_healthy(self) -> bool:
        """Whether the engine core is healthy, so that the router may choose it: connected, without a problem, and not gone."""
        return self.engine.connected and not self.engine.problem and not self.is_gone

    @property
    def health_order(self) -> tuple[bool, bool, bool]:
        """The sort key that the pool applies before the load: healthy members first, then connected, then expected ones."""
        engine = self.engine
        return not engine.connected, engine.given_up, bool(engine.problem) or self.is_gone

    def note_connected(self) -> None:
        """Clear prefixes and adapters if another engine core is connected than before."""
        info = self.engine.info
        if self.engine.connected and info is not None and info.epoch != self._epoch:
            self._epoch = info.epoch
            self.prefixes.begin(info.block_size, info.num_gpu_blocks)
            self.adapters.begin(info.max_cpu_loras)
            if self.events is not None:
                self.events.follow(info.epoch)

    async def close(self) -> None:
        """Close all connections to the engine core."""
        if self.events is not None:
            await self.events.close()
        await self.engine.close()


class Transfer(Protocol):
    """A KV transfer, as a value or as a message."""

    @property
    def do_remote_decode(self) -> bool:
        """Whether the prompt's blocks are kept for another engine core."""

    @property
    def do_remote_prefill(self) -> bool:
        """Whether the prompt's blocks are read from another engine core."""


class HasRole(Protocol):
    """An engine core with its role."""

    @property
    def role(self) -> KvRole:
        """Its --kv-role."""


E = TypeVar("E", bound=HasRole)


def can_do(role: KvRole, transfer: Transfer | None) -> bool:
    """Return whether an engine core of this role can run a request with `transfer`; None: without one."""
    if transfer is None:
        return True
    if transfer.do_remote_decode:
        return role.sends
    return role.receives if transfer.do_remote_prefill else role is not KvRole.NONE


def preferred(engines: Sequence[E], transfer: Transfer | None) -> Sequence[E]:
    """Return those of the engine cores that should run a request; all of them if none is better than the others."""
    fitting = [each for each in engines if _fits(each.role, transfer)]
    return fitting or engines


def _fits(role: KvRole, transfer: Transfer | None) -> bool:
    return role is not KvRole.PRODUCER if transfer is None else can_do(role, transfer)


def missing_role(transfer: Transfer | None, rank: int | None = None) -> UnsupportedArgument:
    """Return the error for a KV transfer that no engine core can do, or the one of a rank cannot; it names the option."""
    key, roles = KV_TRANSFER_PARAMS, "producer, consumer or both"
    if transfer is not None and (transfer.do_remote_decode or transfer.do_remote_prefill):
        key += ".do_remote_decode" if transfer.do_remote_decode else ".do_remote_prefill"
        roles = "producer or both" if transfer.do_remote_decode else "consumer or both"
    why = "there is none" if rank is None else f"that of data_parallel_rank {rank} has another role"
    return UnsupportedArgument(f"{key} needs an engine core with --kv-role {roles}; {why}.", field=KV_TRANSFER_PARAMS)
