"""ChaosStack: a whole local stack of real processes, with a link between every two connected services.

The processes are those of `tetrad serve`: started, watched and restarted by the same code, in a process of its own (host.py).
Only the targets differ: each caller reaches each service through a link. Knows which processes live and are ready; faults.py
disturbs it.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

from tests.chaos.host import Order
from tests.chaos.machine import why_not
from tests.chaos.network import Network
from tests.chaos.outage import Outage
from tests.chaos.preload import Preload
from tests.chaos.proxy import Link
from tests.chaos.stderr import Stderr
from tetrad.stack.service_names import kind_of
from tetrad.stack.stack_settings import StackSettings

SUPERVISOR = "supervisor"

# What reaches these may come over TCP; the others' packets cannot be lost.
_WORKER_LINK = "engine-core>worker"
_TCP_LINKS = (_WORKER_LINK, "frontend>engine-core")
_MODULES = {
    "frontend": "tetrad.frontend",
    "tokenizer": "tetrad.tokenizer_svc",
    "engine-core": "tetrad.engine_core_svc",
    "worker": "tetrad.worker_svc",
}
_CLOSE_TIMEOUT_S = 30.0


class ChaosStack:
    """The stack. Use as an async context manager; it is ready inside.

    Args:
        settings: of the services; the frontend's host and port are where clients go.
        log: file for what the services write to stderr.
        start_timeout_s: how long all of it may take to be ready, or a restart.
    """

    def __init__(self, settings: StackSettings, log: Path, *, start_timeout_s: float = 120.0) -> None:
        self.host, self.port = settings.frontend.host, settings.frontend.port
        self.url = f"http://{self.host}:{self.port}"
        self.lives, self.disk = Outage(), Outage()
        self.links: dict[str, Link] = {}
        self.directory = Path()
        self.engine_admin_target = ""
        self.num_restarts = 0
        self.preload: Preload | None = None
        self.disturbed: set[str] = set()
        self.stderr = Stderr(log)
        self._settings, self._start_timeout_s = settings, start_timeout_s
        self._pids: dict[str, int] = {}
        self._ready: dict[str, asyncio.Event] = {}
        self._up = asyncio.Event()
        self._restarted: dict[str, asyncio.Future[str]] = {}
        self._process: Process | None = None
        self._closing = contextlib.AsyncExitStack()

    @property
    def services(self) -> list[str]:
        """Names of the services."""
        return sorted(self._ready)

    @property
    def tcp_links(self) -> list[str]:
        """Names of the links whose packets can be lost."""
        return sorted(name for name, link in self.links.items() if link.weather is not None)

    def pids(self) -> dict[str, int]:
        """Return the process ids of the services that run, as far as the supervisor has told."""
        return dict(self._pids)

    def processes(self) -> dict[str, int]:
        """Return the process ids of the services and of their supervisor."""
        return self.pids() | {SUPERVISOR: self.supervisor_pid}

    @property
    def supervisor_pid(self) -> int:
        """Process id of the supervisor."""
        assert self._process is not None
        return self._process.pid

    def module(self, name: str) -> str:
        """Return the module that a service runs."""
        return _MODULES[kind_of(name)]

    # --- start and end ----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> "ChaosStack":
        async with contextlib.AsyncExitStack() as closing:
            await self._start(closing)
            self._closing = closing.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._closing.aclose()

    async def _start(self, closing: contextlib.AsyncExitStack) -> None:
        directory = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="chaos-", dir="/tmp")))
        environment = dict(os.environ)
        if why_not("preload") is None:
            self.preload = Preload(directory, tuple(_MODULES.values()))
            environment |= self.preload.environment()
        if why_not("tun") is None:
            self._make_tcp_links(closing)
        closing.push_async_callback(self._close_links)
        lines = await self._run_host(environment, closing)
        made = json.loads(await lines.readline())
        self.directory, self.engine_admin_target = Path(made["directory"]), made["engine_admin_target"]
        for link in made["links"]:
            await self._start_link(link)
        listening = asyncio.create_task(self._listen(lines))
        self._write("listening")
        up = asyncio.create_task(self._up.wait())
        await asyncio.wait({up, listening}, return_when=asyncio.FIRST_COMPLETED)
        if not up.done():
            up.cancel()
            raise RuntimeError("The stack did not start; its log says why.")

    def _make_tcp_links(self, closing: contextlib.AsyncExitStack) -> None:
        network = Network()
        closing.callback(network.close)
        network.open()
        is_group = self._settings.tensor_parallel_size * self._settings.pipeline_parallel_size > 1
        for name in _TCP_LINKS:
            if not (is_group and name == _WORKER_LINK):  # the ranks of a group have addresses of one kind
                self.links[name] = Link(name, Path(), network=network)

    async def _run_host(self, environment: dict[str, str], closing: contextlib.AsyncExitStack) -> asyncio.StreamReader:
        order = Order(self._settings, {name: link.address for name, link in self.links.items()}, self._start_timeout_s)
        with self.stderr.pipe() as write_end:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.chaos.host",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=write_end,
                env=environment, start_new_session=True,
            )  # fmt: skip
        await closing.enter_async_context(self.stderr)
        closing.push_async_callback(self._end_host)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(order.line())
        return self._process.stdout

    async def _start_link(self, made: dict[str, str]) -> None:
        name, target = made["name"], Path(made["target"])
        if name in self.links:
            self.links[name].target = target
        else:
            self.links[name] = Link(name, target, Path(made["listen"].removeprefix("unix:")))
        await self.links[name].start()

    async def _close_links(self) -> None:
        for link in self.links.values():
            await link.close()

    async def _end_host(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _CLOSE_TIMEOUT_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    # --- orders -----------------------------------------------------------------------------------------------------

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until every service takes work; TimeoutError after `timeout_s`."""
        async with asyncio.timeout(timeout_s):
            for ready in self._ready.values():
                await ready.wait()

    async def restart(self, name: str) -> None:
        """Let the supervisor restart a service; returns when it takes work again. RuntimeError if it does not."""
        # The supervisor restarts one after the other: a second order for the same service joins the first.
        if name not in self._restarted:
            self._restarted[name] = asyncio.get_running_loop().create_future()
            self._write(name)
        if error := await asyncio.shield(self._restarted[name]):
            raise RuntimeError(f"{name} was not restarted: {error}")

    def signal(self, name: str, number: signal.Signals) -> bool:
        """Send a signal to a service; return whether there was one."""
        pid = self._pids.get(name)
        if pid is None:
            return False
        if number == signal.SIGKILL and name == "frontend":
            self.lives.begin()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            if number in (signal.SIGKILL, signal.SIGTERM):
                self._ready[name].clear()  # before the supervisor knows
            return True
        return False

    def _write(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    # --- what the supervisor says -----------------------------------------------------------------------------------

    async def _listen(self, lines: asyncio.StreamReader) -> None:
        while line := await lines.readline():
            event = json.loads(line)
            if event["event"] == "state":
                self._on_state(event)
            elif event["event"] == "up":
                self._up.set()
            elif event["event"] == "restarted":
                self._restarted.pop(event["name"]).set_result(event["error"])

    def _on_state(self, event: dict[str, Any]) -> None:
        name, state = event["name"], event["state"]
        ready = self._ready.setdefault(name, asyncio.Event())
        if event["pid"] is not None:
            self._pids[name] = event["pid"]
        if state == "retiring":
            return  # its successor is ready
        if state == "ready":
            ready.set()
            if name == "frontend":
                self.lives.end()
            return
        ready.clear()
        if state == "restarting":
            self._pids.pop(name, None)
            self.num_restarts += 1
            # A supervisor kills what does not answer any more: to a client, no different from our own kill.
            if name == "frontend" and "SIGKILL" in event["why"]:
                self.lives.begin()
