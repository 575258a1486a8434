"""AdapterNames: the LoRA adapters that clients may name as `model`.

Filled from the settings and by operators; a resolver directory adds an adapter on its first use. An adapter's number follows
from its name and path, so every frontend of an engine core gives it the same one. Knows nothing of how adapters are loaded.
"""

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tetrad.frontend.request.outputs import LoRARequest

_MAX_ID = 2**31 - 1
_CONFIG = "adapter_config.json"


class AdapterNames:
    """The names of LoRA adapters, and the adapter of each.

    Args:
        modules: the setting `lora_modules`: entries "NAME=PATH".
        resolver_dir: a directory whose subdirectories with an adapter may be named; empty: there is none.
    """

    def __init__(self, modules: Sequence[str] = (), resolver_dir: str = "") -> None:
        self._known: dict[str, LoRARequest] = {}
        self._resolver_dir = Path(resolver_dir).expanduser() if resolver_dir else None
        for module in modules:
            name, _, path = module.partition("=")
            self.add(adapter_of(name, path))

    def __iter__(self) -> Iterator[LoRARequest]:
        """Iterate over the adapters that have been added."""
        return iter(self._known.values())

    def get(self, name: str) -> LoRARequest | None:
        """Return the adapter with this name, also from the resolver directory; None if there is none."""
        found = self._known.get(name)
        if found is None and self._is_in_directory(name):
            assert self._resolver_dir is not None
            found = adapter_of(name, str(self._resolver_dir / name))
            self.add(found)
        return found

    def add(self, lora: LoRARequest) -> None:
        """Add an adapter, so that clients may name it."""
        self._known[lora.lora_name] = lora

    def remove(self, name: str) -> None:
        """Remove a name; no-op if it is unknown."""
        self._known.pop(name, None)

    def _is_in_directory(self, name: str) -> bool:
        # A name is one component of a path: it cannot name a place outside of the directory.
        if self._resolver_dir is None or not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
            return False
        try:
            return (self._resolver_dir / name / _CONFIG).is_file()
        except OSError:  # the name is too long for a directory, or the directory cannot be read
            return False


def adapter_of(name: str, path: str) -> LoRARequest:
    """Return an adapter whose number is computed from its name and path."""
    return LoRARequest(name, 1 + zlib.crc32(f"{name}\0{path}".encode()) % _MAX_ID, path)
