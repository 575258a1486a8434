"""Child: keeps one process running and restarts it when it dies.

Owned by the supervisor's event loop, one task each. Knows the process, its exit codes, its restart delays, its readiness and
its responses; knows nothing about the other children. Invariant: when `run` has ended, none of its processes runs.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tetrad.readiness import HealthTarget, Stalled, watch_readiness
from tetrad.services.errors import FailedPrecondition, TetradError, Unavailable
from tetrad.services.process import EXIT_PERMANENT
from tetrad.services.timers.running_time import running_timeout
from tetrad.stack.child_output import ChildOutput
from tetrad.stack.stack_log import OnLine
from tetrad.stack.stillness import Stillness
from tetrad.stack.terminal_lines import Render

ChildState = Literal["started", "ready", "not ready", "stalled", "restarting", "retiring"]

_LAST_LINES_S = 0.5
_UNIX = "unix:"

OnState = Callable[[str, ChildState, str], None]
"""Takes a child's name, its new state and, for "stalled" and "restarting", the reason; called from the event loop."""


@dataclass(frozen=True)
class Child:
    """The description of a process to keep running.

    Args:
        name: unique among the children.
        command: program and arguments.
        environment: all of its environment variables.
        health: where it reports whether it accepts requests; None: it counts as ready as soon as it runs.
        pass_fds: file descriptors that it inherits.
        stop_timeout_s: the time after SIGTERM at which it is killed. None: the supervisor's.
        program: the program name in its own lines on stderr ("tetrad PROGRAM: ..."). Empty: `name`.
        on_line: called with each line of its stderr.
        render: returns the text to show for a line.
        is_led: whether another child makes it ready, perhaps only on an operator's order. If it was not ready before a restart,
            a restart does not wait until it is.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    health: HealthTarget | None = None
    pass_fds: Sequence[int] = ()
    stop_timeout_s: float | None = None
    program: str = ""
    on_line: OnLine | None = None
    render: Render = str
    is_led: bool = False


@dataclass(frozen=True)
class RestartPolicy:
    """The rules by which a child that died or no longer answers is started again.

    Args:
        first_delay_s: the delay before the first restart; it doubles with each further restart.
        max_delay_s: the longest delay.
        forget_after_s: after a child has run for this long, the delay is `first_delay_s` again.
        max_start_attempts: a child that was never ready counts as failed after this many starts.
        stall_timeout_s: a child whose connection broke is killed if it does not answer for this long. The time is long so that
            a busy child is not killed: it may block its event loop for as long as a model's warm-up takes. A child that uses
            no CPU time is killed after a second.
    """

    first_delay_s: float = 0.1
    max_delay_s: float = 10.0
    forget_after_s: float = 30.0
    max_start_attempts: int = 3
    stall_timeout_s: float = 30.0


class SupervisedChild:
    """One child and its current process.

    Args:
        child: what to run.
        policy: when to restart it.
        on_state: called at every change of its state.
        stop_timeout_s: the time after SIGTERM at which a child without a time of its own is killed.
    """

    def __init__(self, child: Child, policy: RestartPolicy, on_state: OnState, *, stop_timeout_s: float) -> None:
        self.name = child.name
        self.ready = asyncio.Event()
        self.stopping = False
        self.process: Process | None = None
        self._child = child
        self._stop_timeout_s = stop_timeout_s if child.stop_timeout_s is None else child.stop_timeout_s
        self._policy = policy
        self._on_state = on_state
        self._was_ready = False
        self._is_asked_to_restart = False
        self._output = ChildOutput(child.program or child.name, child.on_line, child.render)

    async def run(self) -> None:
        """Keep the child running until it is stopped; raises a TetradError when another start cannot help."""
        loop, delay_s, attempts = asyncio.get_running_loop(), self._policy.first_delay_s, 0
        while True:
            started_at, attempts = loop.time(), attempts + 1
            code: int | None = None
            try:
                code = await self._run_once()
                end = _describe_exit(code)
            except OSError as error:  # the system has no memory or no process id for it, perhaps only now
                end = error.strerror or str(error)
            if self.stopping:
                return
            if self._is_asked_to_restart:
                self._is_asked_to_restart, delay_s = False, self._policy.first_delay_s
                self._on_state(self.name, "restarting", "as asked")
                continue
            self._check_worth_another_start(code, end, attempts)
            if loop.time() - started_at >= self._policy.forget_after_s:
                delay_s = self._policy.first_delay_s
            self._on_state(self.name, "restarting", end)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, self._policy.max_delay_s)

    def _check_worth_another_start(self, code: int | None, end: str, attempts: int) -> None:
        """Raise a TetradError if another start cannot help.

        Args:
            code: the exit code; None: there was no process.
            end: the end of this attempt, as text.
            attempts: number of starts so far.
        """
        last_own_line = "" if code is None else self._output.last_own_line
        if code == EXIT_PERMANENT:
            raise FailedPrecondition(last_own_line or f"{self.name} refused to start", reason="START_REFUSED")
        if not self._was_ready and attempts >= self._policy.max_start_attempts:
            why = last_own_line or f"the last time with {end}"
            raise Unavailable(f"{self.name} did not start, {attempts} times: {why}", reason="START_FAILED")

    async def restart(self) -> None:
        """End the process, killing it after its stop timeout, and start another; return when that one accepts requests.

        Of a child that is led and accepts none, return when the process has ended.
        """
        waits = self.ready.is_set() or not self._child.is_led
        # Without a process, the next start is already scheduled, so nothing more is needed.
        self._is_asked_to_restart = self.process is not None
        self.ready.clear()
        await self.terminate()
        if waits:
            await self.ready.wait()

    async def retire(self, timeout_s: float) -> None:
        """Let the process finish its requests and end (SIGUSR1); kill it after `timeout_s` seconds. It is not restarted."""
        self.stopping = True
        self._on_state(self.name, "retiring", "")
        await self._end_with(signal.SIGUSR1, timeout_s)
        self.remove_socket()

    @property
    def has_lost_socket(self) -> bool:
        """Whether the process is ready but its socket file was removed, so that no new caller can reach it."""
        return self.ready.is_set() and not self.stopping and (socket := self._socket()) is not None and not socket.exists()

    def remove_socket(self) -> None:
        """Remove the socket of a process that has ended and is not restarted; a killed process could not remove it itself."""
        if (socket := self._socket()) is not None:
            socket.unlink(missing_ok=True)

    def _socket(self) -> Path | None:
        health = self._child.health
        return None if health is None or not health.address.startswith(_UNIX) else Path(health.address.removeprefix(_UNIX))

    async def terminate(self) -> None:
        """Ask the process to end, and kill it after its stop timeout."""
        await self._end_with(signal.SIGTERM, self._stop_timeout_s)

    async def _end_with(self, number: signal.Signals, timeout_s: float) -> None:
        process = self.process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            async with running_timeout(timeout_s):
                await process.wait()
        except TimeoutError:
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """Kill the process and the processes that it started; return at once."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    async def _run_once(self) -> int:
        """Run the child from start to end and return its exit code."""
        process = await asyncio.create_subprocess_exec(
            *self._child.command,
            env=dict(self._child.environment),
            pass_fds=tuple(self._child.pass_fds),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            # Ctrl-C in a terminal reaches the whole process group: only the parent must get it, and stop the children in order.
            start_new_session=True,
        )
        assert process.stderr is not None
        self.process = process
        watching = asyncio.create_task(self._watch(), name=f"{self.name}.watch")
        forwarding = asyncio.create_task(self._output.forward(process.stderr), name=f"{self.name}.stderr")
        try:
            if self.stopping:  # stop() was called while the process was being created
                self.kill()
            self._on_state(self.name, "started", "")
            code = await _exit_code(process, watching)
            # Its last lines may still be in the pipe. The wait is limited: another process may have inherited the pipe.
            await asyncio.wait({forwarding}, timeout=_LAST_LINES_S)
            return code
        finally:
            if process.returncode is None:
                self.kill()
                await process.wait()
            await cancel(watching, forwarding)
            self.process = None
            self.ready.clear()

    async def _watch(self) -> None:
        if self._child.health is None:
            self._note_readiness(True)
            return
        try:
            async for ready in self._readiness(self._child.health):
                self._note_readiness(ready)
        except Stalled as error:
            # A child that is stopping has its own time limit, and closes its server before its process ends.
            if not self.stopping:
                self._on_state(self.name, "stalled", error.message)
                self.kill()

    def _readiness(self, health: HealthTarget) -> AsyncIterator[bool]:
        assert self.process is not None
        stillness = Stillness(self.process.pid, health.address)
        return watch_readiness(health, stall_timeout_s=self._policy.stall_timeout_s, stands_still=stillness.look)

    def _note_readiness(self, ready: bool) -> None:
        if ready:
            self._was_ready = True
            self.ready.set()
        else:
            self.ready.clear()
        if not self.stopping:
            self._on_state(self.name, "ready" if ready else "not ready", "")


async def cancel(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        # Its error, if any, was raised to the waiting caller.
        with contextlib.suppress(asyncio.CancelledError, TetradError):
            await task


async def _exit_code(process: Process, watching: asyncio.Task[None]) -> int:
    """Return the exit code when the process has ended; raise the error of `watching` if it fails before."""
    ending = asyncio.create_task(process.wait())
    try:
        await asyncio.wait({ending, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            await watching
        return await ending
    finally:
        ending.cancel()


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # most real-time signals have no name
        return f"signal {-code}"
