"""Supervisor: keeps children running, restarts them one at a time, and stops them.

Called by the local stack. Knows the order of stopping and the successor of each child; child.py has the life of one child.
Knows nothing of the services. Owned by one event loop. Invariant: after `stop` no child lives, whatever state it was in.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from tetrad.stack.child import Child, ChildState, OnState, RestartPolicy, SupervisedChild, cancel


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
        self._policy, self._on_state = policy or RestartPolicy(), on_state or _ignore_state
        # Of one name there may be several: a successor stands behind those that retire.
        self._groups = [[self._supervised(child) for child in group] for group in groups]
        self._stop_timeout_s = stop_timeout_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Start every child; returns at once. The last to stop is the first to start: others wait for it."""
        self._failure = asyncio.get_running_loop().create_future()
        for group in reversed(self._groups):
            for child in group:
                self._start(child.run(), child.name).add_done_callback(self._note_end)

    async def wait_ready(self) -> None:
        """Wait until every child takes work.

        Raises:
            TetradError: a child can never run, with its own line (FailedPrecondition), or did not come up (Unavailable).
        """
        await self._unless_failed(self._all_ready())

    async def wait_failed(self) -> None:
        """Wait until a child is given up, and raise why; returns when the supervisor was stopped."""
        if self._failure is not None:
            await asyncio.shield(self._failure)

    async def restart(self, name: str) -> None:
        """End a child and start it again; returns when it takes work. Raises what `wait_ready` raises."""
        await self._unless_failed(self._current(name).restart(self._stop_timeout_s))

    async def replace(self, successor: Child, *, retire_timeout_s: float) -> None:
        """Start a successor beside the child of its name and, when it takes work, let that one finish its own and end.

        Args:
            successor: must be able to run beside its predecessor.
            retire_timeout_s: how long the predecessor may take.

        Raises:
            TetradError: the successor cannot run or did not come up; the predecessor goes on as if nothing had been.
        """
        old, new = self._current(successor.name), self._supervised(successor)
        group = next(group for group in self._groups if old in group)
        group.append(new)
        running = self._start(new.run(), new.name)
        ready = asyncio.create_task(new.ready.wait())
        try:
            await asyncio.wait({ready, running}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        except BaseException:
            group.remove(new)
            new.stopping = True
            await new.terminate(self._stop_timeout_s)
            await cancel(running)
            new.remove_socket()
            raise
        finally:
            ready.cancel()
        running.add_done_callback(self._note_end)
        # Out of the way of `_current`, and still where `stop` finds it.
        group.sort(key=lambda child: child is not old)
        self._start(self._retire(old, group, retire_timeout_s), f"{old.name}.retire")

    async def _retire(self, old: SupervisedChild, group: list[SupervisedChild], timeout_s: float) -> None:
        await old.retire(timeout_s)
        group.remove(old)

    async def stop(self) -> None:
        """Take every child down, group by group; the groups' time limits together bound how long that takes."""
        for child in self._children():
            child.stopping = True
        for group in self._groups:
            await asyncio.gather(*(child.terminate(self._stop_timeout_s) for child in group))
        await cancel(*self._tasks)
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(None)

    def kill(self) -> None:
        """Kill every child; returns at once. For a process that ends right behind it."""
        for child in self._children():
            child.kill()

    def pids(self) -> dict[str, int]:
        """Return the process ids of the children that run; of those that retire, if they have a successor, only that one's."""
        return {child.name: child.process.pid for child in self._children() if child.process is not None}

    def without_sockets(self) -> list[str]:
        """Return the names of the children that take work but have lost their sockets."""
        return [child.name for child in self._children() if child.has_lost_socket]

    def _supervised(self, child: Child) -> SupervisedChild:
        return SupervisedChild(child, self._policy, self._on_state)

    def _children(self) -> Iterator[SupervisedChild]:
        return (child for group in self._groups for child in list(group))

    def _current(self, name: str) -> SupervisedChild:
        return [child for child in self._children() if child.name == name][-1]

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _note_end(self, task: asyncio.Task[None]) -> None:
        """Fail all waiters with the error of a child that was given up."""
        if not task.cancelled() and (error := task.exception()) is not None:
            assert self._failure is not None
            if not self._failure.done():
                self._failure.set_exception(error)
                self._failure.exception()  # marks it as retrieved: there may be no waiter

    async def _all_ready(self) -> None:
        for child in self._children():
            await child.ready.wait()

    async def _unless_failed(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for `work`; raise why a child was given up if that comes first."""
        working, failing = asyncio.create_task(work), asyncio.create_task(self.wait_failed())
        try:
            await asyncio.wait({working, failing}, return_when=asyncio.FIRST_COMPLETED)
            await (failing if failing.done() else working)
        finally:
            await cancel(working, failing)


def _ignore_state(name: str, state: ChildState, why: str) -> None:
    """Report nothing."""
