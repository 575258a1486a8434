"""Member: one engine core of the pool and its routing facts. Owned by the engine pool; a Candidate to the router."""

from dataclasses import dataclass, field

from tetrad.frontend.engine.client import EngineClient
from tetrad.frontend.net.discovery import Endpoint
from tetrad.frontend.routing.adapter_memory import AdapterMemory
from tetrad.frontend.routing.kv_events_client import KvEventsClient
from tetrad.frontend.routing.prefix_memory import PrefixMemory


@dataclass(eq=False, slots=True)
class Member:
    """One engine core.

    Attributes:
        endpoint: where it is.
        engine: its sessions and requests.
        events: where its KV events come from; None: they cannot be had.
        prefixes: what it holds.
        adapters: what it has loaded.
        is_gone: its name no longer stands for it: it gets nothing new, and is let go when it is lost or has nothing left.
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
        """Name of the engine that every frontend knows; before it is connected, its address."""
        return str(self._epoch).encode() if self._epoch else self.endpoint.target.encode()[:64]

    @property
    def num_requests(self) -> int:
        """Requests that it has."""
        return self.engine.load.num_requests(self.engine.num_unfinished)

    @property
    def kv_cache_usage(self) -> float:
        """Share of its KV blocks in use, 0 to 1."""
        return self.engine.load.kv_cache_usage

    def has_adapter(self, name: str) -> bool:
        """Return whether it has an adapter loaded, as far as is known."""
        return self.adapters.has(name, self.engine.load.running_loras)

    @property
    def own_rank(self) -> int | None:
        """Its --data-parallel-rank; None before it has said."""
        return None if self.engine.info is None else self.engine.info.engine_index

    @property
    def place(self) -> tuple[int, int, str]:
        """Sort key of its position: that of its target, its own rank, its address."""
        return self.endpoint.place, self.own_rank or 0, self.endpoint.target

    @property
    def is_well(self) -> bool:
        """Whether it should get requests that others could serve."""
        return self.engine.connected and not self.engine.problem and not self.is_gone

    @property
    def reluctance(self) -> tuple[bool, bool, bool]:
        """Sort key of an engine, before its load: healthy before connected before expected."""
        engine = self.engine
        return not engine.connected, engine.given_up, bool(engine.problem) or self.is_gone

    def note_connected(self) -> None:
        """Forget what it held if it is another engine core than before."""
        info = self.engine.info
        if self.engine.connected and info is not None and info.epoch != self._epoch:
            self._epoch = info.epoch
            self.prefixes.begin(info.block_size, info.num_gpu_blocks)
            self.adapters.begin(info.max_cpu_loras)
            if self.events is not None:
                self.events.follow(info.epoch)

    async def close(self) -> None:
        """End all connections to it."""
        if self.events is not None:
            await self.events.close()
        await self.engine.close()
