"""ChaosStack: a whole local stack of real processes, with a link between every two services that talk, and hands to hurt them.

The processes are those of `tetrad serve`: started, watched and restarted by the same code. Only their targets differ: each
caller reaches each service through a link of its own. Knows nothing of requests.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos.client import FrontendLives
from tests.chaos.proxy import Link
from tests.chaos.schedule import Fault
from tetrad.child import ChildState, RestartPolicy
from tetrad.local_stack import LocalStack, StackSettings
from tetrad.services.settings import ServiceSettings

# What is killed every few seconds would otherwise be restarted later each time, as what cannot run is.
_POLICY = RestartPolicy(first_delay_s=0.1, max_delay_s=0.1)
_SLOW_LATENCY_S = 0.05


class ChaosStack:
    """The stack. Use as a context manager; it is ready inside.

    Args:
        settings: of the services; the frontend's host and port are where clients go.
        start_timeout_s: how long all of it may take to be ready.
    """

    def __init__(self, settings: StackSettings, *, start_timeout_s: float = 120.0) -> None:
        self.url = f"http://{settings.frontend.host}:{settings.frontend.port}"
        self.lives = FrontendLives()
        self.links: dict[str, Link] = {}
        self.num_restarts = 0
        self._start_timeout_s = start_timeout_s
        self._ready: dict[str, asyncio.Event] = {}
        self._frozen: dict[str, int] = {}
        self._stack = LocalStack(settings, serve=True, on_state=self._on_state, policy=_POLICY, adapt=self._through_links)

    @property
    def directory(self) -> Path:
        """Where all sockets are."""
        return self._stack.directory

    @property
    def engine_admin_target(self) -> str:
        """Address at which the engine core answers operators, behind the links."""
        return self._stack.engine_admin_target

    @property
    def services(self) -> list[str]:
        """Names of the services."""
        return sorted(self._stack.pids())

    def pids(self) -> dict[str, int]:
        """Return the process ids of the services that run."""
        return self._stack.pids()

    async def __aenter__(self) -> "ChaosStack":
        try:
            for link in self.links.values():
                await link.start()
            await self._stack.start(timeout_s=self._start_timeout_s)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._close()

    async def _close(self) -> None:
        await self._stack.close()
        for link in self.links.values():
            await link.close()

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until every service takes work; TimeoutError after `timeout_s`."""
        async with asyncio.timeout(timeout_s):
            for ready in self._ready.values():
                await ready.wait()

    # --- faults -----------------------------------------------------------------------------------------------------

    async def apply(self, fault: Fault) -> float | None:
        """Do what a fault says, healing included; return when it struck, None if its target was not there."""
        strike: dict[str, Callable[[Fault], bool]] = {"kill": self._kill, "drain": self._drain}
        struck_at = time.monotonic()
        if fault.kind in strike:
            return struck_at if strike[fault.kind](fault) else None
        if fault.kind == "freeze":
            return struck_at if await self._freeze(fault) else None
        if fault.kind == "restart":
            await self._stack.restart(fault.target, timeout_s=self._start_timeout_s)
            return struck_at
        await self._disturb(self.links[fault.target], fault)
        return struck_at

    def _kill(self, fault: Fault) -> bool:
        if fault.target == "frontend":
            self.lives.note_killed()
        return self._signal(fault.target, signal.SIGKILL)

    def _drain(self, fault: Fault) -> bool:
        return self._signal(fault.target, signal.SIGTERM)

    async def _freeze(self, fault: Fault) -> bool:
        pid = self.pids().get(fault.target)
        if not self._signal(fault.target, signal.SIGSTOP):
            return False
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            if self.pids().get(fault.target) == pid:
                self._signal(fault.target, signal.SIGCONT)
        return True

    async def _disturb(self, link: Link, fault: Fault) -> None:
        if fault.kind == "cut":
            link.cut()
        elif fault.kind == "garble":
            link.garble()
        elif fault.kind == "stall":
            await link.stall(fault.lasts_s)
        else:
            await link.slow(_SLOW_LATENCY_S, fault.lasts_s)

    def _signal(self, name: str, number: signal.Signals) -> bool:
        pid = self.pids().get(name)
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            if number in (signal.SIGKILL, signal.SIGTERM):
                self._ready[name].clear()  # before the supervisor knows
            return True
        return False

    # --- what the stack says ----------------------------------------------------------------------------------------

    def _on_state(self, name: str, state: ChildState, why: str) -> None:
        ready = self._ready.setdefault(name, asyncio.Event())
        if state == "retiring":
            return  # its successor is ready
        if state == "ready":
            ready.set()
            if name == "frontend":
                self.lives.note_ready()
            return
        ready.clear()
        if state == "restarting":
            self.num_restarts += 1
            # A supervisor kills what does not answer any more: to a client, no different from our own kill.
            if name == "frontend" and "SIGKILL" in why:
                self.lives.note_killed()

    def _through_links(self, name: str, settings: ServiceSettings) -> ServiceSettings:
        """Return settings in which every target is a link of this service's own."""
        changed = {}
        for field, value in settings.model_dump().items():
            if field.endswith("_target") and isinstance(value, str):
                changed[field] = self._link(name, value)
            elif field.endswith("_targets"):
                changed[field] = tuple(self._link(name, target) for target in value)
        return type(settings)(**settings.model_dump() | changed)

    def _link(self, caller: str, target: str) -> str:
        path = Path(target.removeprefix("unix:"))
        name = f"{caller}>{path.stem}"
        # Called again for the same child: one link is enough.
        if name not in self.links:
            self.links[name] = Link(name, path.with_name(f"{caller}-{path.stem}.link"), path)
        return f"unix:{path.with_name(f'{caller}-{path.stem}.link')}"
