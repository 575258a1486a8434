"""Supervisor: keeps child processes running, and takes them down.

Called by the local stack. Knows processes, exit codes, back-off and readiness; knows nothing of models or of what its children
serve. Owned by one event loop; each child has one task. Invariant: after `stop` no child lives, whatever state it was in.
"""

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tetrad.readiness import HealthTarget, watch_readiness
from tetrad.services.errors import FailedPrecondition, TetradError, Unavailable
from tetrad.services.process import EXIT_PERMANENT

ChildState = Literal["started", "ready", "not ready", "restarting"]

_LAST_LINES_S = 0.5

OnState = Callable[[str, ChildState, str], None]
"""Takes a child's name, its new state and, for "restarting", why; called from the event loop."""


@dataclass(frozen=True)
class Child:
    """A process to keep running.

    Args:
        name: how the process calls itself on stderr ("tetrad NAME: ...").
        command: program and arguments.
        environment: its whole environment.
        health: where it says that it takes work; None: it does as soon as it runs.
        pass_fds: descriptors it inherits.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    health: HealthTarget | None = None
    pass_fds: Sequence[int] = ()


@dataclass(frozen=True)
class RestartPolicy:
    """When a child that died is started again.

    Args:
        first_delay_s: before the first restart; doubles with each further one.
        max_delay_s: the longest delay.
        forget_after_s: a child that lived this long starts again at the first delay.
        max_start_attempts: a child that was never ready is given up after this many starts.
    """

    first_delay_s: float = 0.1
    max_delay_s: float = 10.0
    forget_after_s: float = 30.0
    max_start_attempts: int = 3


class Supervisor:
    """Starts children together, restarts what dies, and stops them group by group.

    Args:
        groups: children in the order in which they are stopped; those of one group stop together.
        policy: when to restart.
        on_state: told about every change of a child's state.
        stop_timeout_s: how long each group may take after SIGTERM before it is killed.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Child]],
        *,
        policy: RestartPolicy | None = None,
        on_state: OnState | None = None,
        stop_timeout_s: float = 2.0,
    ) -> None:
        policy, on_state = policy or RestartPolicy(), on_state or _ignore_state
        self._groups = [[_Supervised(child, policy, on_state) for child in group] for group in groups]
        self._stop_timeout_s = stop_timeout_s
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start every child; returns at once."""
        self._tasks = [asyncio.create_task(child.run(), name=child.name) for child in self._children()]

    async def wait_ready(self) -> None:
        """Wait until every child takes work.

        Raises:
            TetradError: a child can never run, with its own line (FailedPrecondition), or did not come up (Unavailable).
        """
        ready = asyncio.create_task(self._all_ready())
        failure = asyncio.create_task(self.wait_failed())
        try:
            await asyncio.wait({ready, failure}, return_when=asyncio.FIRST_COMPLETED)
            if failure.done():
                await failure
        finally:
            await _cancel(ready, failure)

    async def _all_ready(self) -> None:
        for child in self._children():
            await child.ready.wait()

    async def wait_failed(self) -> None:
        """Wait until a child is given up, and raise why; returns when the supervisor was stopped."""
        if self._tasks:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                if not task.cancelled():
                    task.result()

    async def stop(self) -> None:
        """Take every child down, group by group; the groups' time limits together bound how long that takes."""
        for child in self._children():
            child.stopping = True
        for group in self._groups:
            await asyncio.gather(*(child.terminate(self._stop_timeout_s) for child in group))
        await _cancel(*self._tasks)

    def pids(self) -> dict[str, int]:
        """Return the process ids of the children that run."""
        return {child.name: child.process.pid for child in self._children() if child.process is not None}

    def _children(self) -> Iterable["_Supervised"]:
        return (child for group in self._groups for child in group)


class _Supervised:
    """One child over all its incarnations."""

    def __init__(self, child: Child, policy: RestartPolicy, on_state: OnState) -> None:
        self.name = child.name
        self.ready = asyncio.Event()
        self.stopping = False
        self.process: Process | None = None
        self._child = child
        self._policy = policy
        self._on_state = on_state
        self._was_ready = False
        self._last_words = ""

    async def run(self) -> None:
        """Keep the child running until it is stopped; raises a TetradError when starting it again cannot help."""
        loop, delay_s, attempts = asyncio.get_running_loop(), self._policy.first_delay_s, 0
        while True:
            started_at, attempts = loop.time(), attempts + 1
            code = await self._run_once()
            if self.stopping:
                return
            if code == EXIT_PERMANENT:
                raise FailedPrecondition(self._last_words or f"{self.name} refused to start", reason="START_REFUSED")
            if not self._was_ready and attempts >= self._policy.max_start_attempts:
                why = self._last_words or f"the last time with {_describe_exit(code)}"
                raise Unavailable(f"{self.name} did not start, {attempts} times: {why}", reason="START_FAILED")
            if loop.time() - started_at >= self._policy.forget_after_s:
                delay_s = self._policy.first_delay_s
            self._on_state(self.name, "restarting", _describe_exit(code))
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, self._policy.max_delay_s)

    async def terminate(self, timeout_s: float) -> None:
        """Ask the child to end, and kill it after `timeout_s` seconds."""
        process = self.process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _run_once(self) -> int:
        """Run the child from start to end and return its exit code."""
        process = await asyncio.create_subprocess_exec(
            *self._child.command,
            env=dict(self._child.environment),
            pass_fds=tuple(self._child.pass_fds),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            # Ctrl-C in a terminal reaches the whole process group: only the parent shall hear it, and stop in order.
            start_new_session=True,
        )
        self.process = process
        watching = asyncio.create_task(self._watch(), name=f"{self.name}.watch")
        forwarding = asyncio.create_task(self._forward_stderr(process), name=f"{self.name}.stderr")
        try:
            if self.stopping:  # stop() came while the process was being made
                process.kill()
            self._on_state(self.name, "started", "")
            code = await _exit_code(process, watching)
            # Its last lines may still be in the pipe; whatever inherited the pipe must not keep us.
            await asyncio.wait({forwarding}, timeout=_LAST_LINES_S)
            return code
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await _cancel(watching, forwarding)
            self.process = None
            self.ready.clear()

    async def _watch(self) -> None:
        if self._child.health is None:
            self._note_readiness(True)
            return
        async for ready in watch_readiness(self._child.health):
            self._note_readiness(ready)

    def _note_readiness(self, ready: bool) -> None:
        if ready:
            self._was_ready = True
            self.ready.set()
        else:
            self.ready.clear()
        if not self.stopping:
            self._on_state(self.name, "ready" if ready else "not ready", "")

    async def _forward_stderr(self, process: Process) -> None:
        """Pass the child's lines on until it closes them; hold its last words back, which are the stack's if it ends here."""
        assert process.stderr is not None
        own, self._last_words = f"tetrad {self.name}: ", ""
        while line := await _read_line(process.stderr):
            if line.startswith(own):
                self._last_words = line.removeprefix("tetrad ").strip()
            else:
                sys.stderr.write(line)
                sys.stderr.flush()


async def _exit_code(process: Process, watching: asyncio.Task[None]) -> int:
    """Wait for the process to end; raise the error of `watching` if that comes first."""
    ending = asyncio.create_task(process.wait())
    try:
        await asyncio.wait({ending, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            await watching
        return await ending
    finally:
        ending.cancel()


async def _read_line(stream: asyncio.StreamReader) -> str:
    """Return the next line, or a part of one that is longer than the reader's buffer; empty at the end."""
    try:
        data = await stream.readuntil()
    except asyncio.IncompleteReadError as error:
        data = error.partial
    except asyncio.LimitOverrunError as error:
        data = await stream.readexactly(error.consumed)
    return data.decode(errors="replace")


def _describe_exit(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        # Its error, if any, was raised to whoever waited for it.
        with contextlib.suppress(asyncio.CancelledError, TetradError):
            await task


def _ignore_state(name: str, state: ChildState, why: str) -> None:
    """Tell nobody."""
