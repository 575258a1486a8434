"""SkewStack: a local stack in which each service is of the present version or of the previous release.

The supervisor is of the present version. A changed version of a service takes effect at its next restart.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from tetrad.stack.child import Child
from tetrad.stack.local_stack import LocalStack
from tetrad.stack.stack_settings import StackSettings

Version = Literal["previous", "present"]


class SkewStack(LocalStack):
    """The stack; all of its services are of the previous release at first.

    Args:
        settings: of the services.
        release: directory with the packages of the previous release.
    """

    def __init__(self, settings: StackSettings, release: Path) -> None:
        self.versions: dict[str, Version] = {}
        self._release = release
        super().__init__(settings, serve=True, adapt_child=self._versioned)

    async def change(self, name: str, version: Version, *, timeout_s: float) -> None:
        """Restart a service as another version; returns when it takes work."""
        self.versions[name] = version
        await self.restart(name, timeout_s=timeout_s)

    def _versioned(self, child: Child) -> Child:
        self.versions.setdefault(child.name, "previous")
        return replace(child, environment=_VersionedEnvironment(child.environment, self.versions, child.name, self._release))


class _VersionedEnvironment(Mapping[str, str]):
    """A child's environment, read anew at each start: where its packages are found follows from its version."""

    def __init__(self, base: Mapping[str, str], versions: Mapping[str, Version], name: str, release: Path) -> None:
        self._base, self._versions, self._name, self._release = base, versions, name, release

    def _now(self) -> Mapping[str, str]:
        if self._versions[self._name] == "present":
            return self._base
        return {**self._base, "PYTHONPATH": str(self._release), "PYTHONSAFEPATH": "1"}

    def __getitem__(self, key: str) -> str:
        return self._now()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())
