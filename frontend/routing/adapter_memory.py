"""AdapterMemory: tracks the adapters that one engine core has probably loaded.

Two sources: the requests that this frontend routed there, and the engine core's reports, which name the adapters of the running
requests of all frontends. Bounded by the number of adapters that the engine core keeps; like the engine core, it drops the
least recently used one first.
"""

from collections import OrderedDict
from collections.abc import Sequence


class AdapterMemory:
    """The names of one engine core's adapters."""

    def __init__(self) -> None:
        self._most = 0
        self._names: OrderedDict[str, None] = OrderedDict()

    def begin(self, most: int) -> None:
        """Clear the memory for a new engine core, which keeps up to `most` adapters."""
        self._most = most
        self._names.clear()

    def expect(self, name: str) -> None:
        """Record that the engine core will load an adapter for a request that is being sent."""
        self._names[name] = None
        self._names.move_to_end(name)
        while len(self._names) > self._most:
            self._names.popitem(last=False)

    def has(self, name: str, running: Sequence[str]) -> bool:
        """Return whether the engine core probably has an adapter; `running` are the names in its last report."""
        return name in running or name in self._names
