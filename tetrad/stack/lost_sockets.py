"""Lost sockets: restarts services whose socket files were removed, for example by a cleaner of /tmp.

Called by the local stack. Open connections survive the removal, so it does no harm until a service restarts: that service
could not create its own socket, or could not reach the others. Knows names, not processes. Owned by one event loop.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tetrad.services.errors import TetradError
from tetrad.services.log import get_logger
from tetrad.stack.child import ChildState
from tetrad.stack.private_directory import PrivateDirectory

log = get_logger()


class LostSockets:
    """Looks for lost sockets whenever a service is about to start again.

    Args:
        directory: the directory of the sockets.
        find: returns the names of running services that have lost their sockets.
        restart: restarts services by their names, one after the other.
    """

    def __init__(
        self,
        directory: PrivateDirectory,
        find: Callable[[], Sequence[str]],
        restart: Callable[[Sequence[str]], Coroutine[Any, Any, None]],
    ) -> None:
        self._directory, self._find, self._restart = directory, find, restart
        self._restarting: asyncio.Task[None] | None = None

    def note_state(self, name: str, state: ChildState) -> None:
        """Restore the directory and restart other services with lost sockets, if a service is about to start again."""
        if state != "restarting":
            return
        try:
            self._directory.restore()
        except OSError as error:
            log.error("sockets.directory_lost", path=str(self._directory.path), error=str(error))
        lost = [each for each in self._find() if each != name]
        if lost and (self._restarting is None or self._restarting.done()):
            log.warning("sockets.lost", path=str(self._directory.path), services=lost)
            self._restarting = asyncio.create_task(self._bring_back(lost), name="lost sockets")

    async def close(self) -> None:
        """Cancel a restart that is running."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)

    async def _bring_back(self, names: Sequence[str]) -> None:
        try:
            await self._restart(names)
        except TetradError as error:
            log.error("sockets.not_restored", services=names, error=error.message)
