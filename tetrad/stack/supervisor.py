"""Supervisor: keeps children running, restarts them one at a time, and stops them.

Called by the local stack. Knows the order of stopping and the successor of each child; child.py runs one child. Knows nothing
about the services. Owned by one event loop. Invariant: after `stop` no child lives.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from tetrad.stack.child import Child, ChildState, OnState, RestartPolicy, SupervisedChild, cancel


class Supervisor:
    """Starts children together, restarts those that die, and stops them group by group.

    Args:
        groups: children in the order in which they are stopped; those of one group stop together.
        policy: the rules for restarts.
        on_state: called at every change of a child's state.
        stop_timeout_s: the time after SIGTERM at which the children of a group are killed, unless a child has its own.
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
        self._stop_timeout_s = stop_timeout_s
        # Several children may have one name: a successor stands behind the children that retire.
        self._groups = [[self._supervised(child) for child in group] for group in groups]
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Start every child; return at once. The last group to stop is the first to start: the others wait for it."""
        self._failure = asyncio.get_running_loop().create_future()
        for group in reversed(self._groups):
            for child in group:
                self._start(child.run(), child.name).add_done_callback(self._note_end)

    async def wait_ready(self) -> None:
        """Wait until every child accepts requests.

        Raises:
            TetradError: a child can never run (FailedPrecondition, with its own line), or did not become ready (Unavailable).
        """
        await self._unless_failed(self._all_ready())

    async def wait_failed(self) -> None:
        """Wait until a child has failed finally, and raise its error; return when the supervisor was stopped."""
        if self._failure is not None:
            await asyncio.shield(self._failure)

    async def restart(self, *names: str) -> None:
        """End children together and start them again; return when they accept requests. Raises the errors of `wait_ready`."""
        await self._unless_failed(_restart([self._current(name) for name in names]))

    async def replace(self, successor: Child, *, retire_timeout_s: float) -> None:
        """Start a successor beside the child of the same name; when it is ready, let the old child finish its requests and end.

        Args:
            successor: the new child; it must be able to run beside its predecessor.
            retire_timeout_s: the longest time that the predecessor may take.

        Raises:
            TetradError: the successor cannot run or did not become ready; the predecessor continues unchanged.
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
            await new.terminate()
            await cancel(running)
            new.remove_socket()
            raise
        finally:
            ready.cancel()
        running.add_done_callback(self._note_end)
        # The old child moves to the front: `_current` no longer returns it, and `stop` still finds it.
        group.sort(key=lambda child: child is not old)
        self._start(self._retire(old, group, retire_timeout_s), f"{old.name}.retire")

    async def _retire(self, old: SupervisedChild, group: list[SupervisedChild], timeout_s: float) -> None:
        await old.retire(timeout_s)
        group.remove(old)

    async def stop(self) -> None:
        """Stop every child, group by group; takes at most the sum of the groups' time limits."""
        for child in self._children():
            child.stopping = True
        for group in self._groups:
            await asyncio.gather(*(child.terminate() for child in group))
        await cancel(*self._tasks)
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(None)

    def kill(self) -> None:
        """Kill every child; return at once. For a process that is about to end."""
        for child in self._children():
            child.stopping = True
            child.kill()

    def pids(self) -> dict[str, int]:
        """Return the process ids of the running children. If a retiring child has a running successor, only that one's."""
        return {child.name: child.process.pid for child in self._children() if child.process is not None}

    def without_sockets(self) -> list[str]:
        """Return the names of the ready children whose socket files were removed."""
        return [child.name for child in self._children() if child.has_lost_socket]

    def _supervised(self, child: Child) -> SupervisedChild:
        return SupervisedChild(child, self._policy, self._on_state, stop_timeout_s=self._stop_timeout_s)

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
        """Fail all waiters with the error of a child that has failed finally."""
        if not task.cancelled() and (error := task.exception()) is not None:
            assert self._failure is not None
            if not self._failure.done():
                self._failure.set_exception(error)
                self._failure.exception()  # marks it as retrieved: there may be no waiter

    async def _all_ready(self) -> None:
        for child in self._children():
            await child.ready.wait()

    async def _unless_failed(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for `work`; if a child fails finally before its end, raise that child's error."""
        working, failing = asyncio.create_task(work), asyncio.create_task(self.wait_failed())
        try:
            await asyncio.wait({working, failing}, return_when=asyncio.FIRST_COMPLETED)
            await (failing if failing.done() else working)
        finally:
            await cancel(working, failing)


async def _restart(children: Sequence[SupervisedChild]) -> None:
    await asyncio.gather(*(child.restart() for child in children))


def _ignore_state(name: str, state: ChildState, why: str) -> None:
    """Do nothing: the default `on_state`."""
