"""AdapterMemory: the adapters that one engine core has loaded, as far as this frontend knows.

Two sources: the requests that this frontend routed there, and the engine core's reports, which name the adapters that run for
any frontend. Bounded by the engine core's places for adapters; the least recently used one is forgotten first, as there.
"""

from collections import OrderedDict
from collections.abc import Sequence


class AdapterMemory:
    """Names of adapters of one engine core."""

    def __init__(self) -> None:
        self._most = 0
        self._names: OrderedDict[str, None] = OrderedDict()

    def begin(self, most: int) -> None:
        """Start over with an engine core that has no adapter, and places for so many."""
        self._most = most
        self._names.clear()

    def expect(self, name: str) -> None:
        """Note that a request of an adapter is on its way to the engine core, which will have it."""
        self._names[name] = None
        self._names.move_to_end(name)
        while len(self._names) > self._most:
            self._names.popitem(last=False)

    def has(self, name: str, running: Sequence[str]) -> bool:
        """Return whether the engine core has an adapter; `running` are those that its last report names."""
        return name in running or name in self._names
