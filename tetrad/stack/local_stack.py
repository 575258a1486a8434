"""Local stack: runs the services of one machine as child processes on Unix sockets in a private directory.

Used by `tetrad serve` and by the blocking and async engines of a program. Decides the order of stopping and of a rolling
restart. The service children describe the processes; the supervisor keeps them running. Invariant: the children end with this
process, even if it is killed (lifeline), and the directory is removed with them.
"""

import asyncio
from collections.abc import Sequence
from typing import Self

from tetrad.frontend.config import FrontendSettings
from tetrad.services.errors import InvalidRequest
from tetrad.services.packages import require_packages
from tetrad.stack.address_space import check_address_space
from tetrad.stack.child import ChildState, OnState, RestartPolicy
from tetrad.stack.lifeline import Lifeline
from tetrad.stack.lost_sockets import LostSockets
from tetrad.stack.model_place import model_places
from tetrad.stack.private_directory import PrivateDirectory
from tetrad.stack.public_ports import PublicPorts
from tetrad.stack.service_children import Adapt, AdaptChild, ServiceChildren
from tetrad.stack.service_names import kind_of, number_of
from tetrad.stack.stack_log import StackLog
from tetrad.stack.stack_settings import StackSettings
from tetrad.stack.stack_url import url_of, write_url
from tetrad.stack.supervisor import Supervisor

# Three groups stop one after the other, within the 5 s in which a stack must have ended.
_STOP_TIMEOUT_S = 1.6
# Time added to what a retiring frontend needs: a loaded machine may delay its end.
_RETIRE_MARGIN_S = 1.2
_NUM_TOKENIZERS_SERVED = 2


class LocalStack:
    """Starts tokenizer, worker, engine core and, with `serve`, the frontend; keeps them running until it is closed.

    Args:
        settings: the settings of the services.
        serve: also run the frontend as a child; otherwise this process is the frontend, with `frontend_settings`.
        on_state: called at every change of a service's state.
        policy: the rules by which a service that died is started again.
        adapt: returns the final settings of each service, for tests that intercept calls between services.
        adapt_child: returns the final description of each child, for tests that run other versions of services.
    """

    def __init__(
        self,
        settings: StackSettings,
        *,
        serve: bool = False,
        on_state: OnState | None = None,
        policy: RestartPolicy | None = None,
        adapt: Adapt | None = None,
        adapt_child: AdaptChild | None = None,
    ) -> None:
        if serve and settings.worker.allow_functions:
            text = "allow_functions is for the own services of a program (LLM, AsyncLLM); a server runs no functions."
            raise InvalidRequest(text, field="allow_functions")
        if serve:
            require_packages("The frontend", ("frontend",))
        check_address_space()
        self._private = PrivateDirectory()
        self.directory = self._private.path
        self._log = StackLog(self.directory)
        num_tokenizers = _NUM_TOKENIZERS_SERVED if serve else 1
        places = list(
            model_places(self.directory, [(model, model.num_tokenizers or num_tokenizers) for model in settings.models])
        )
        # Of the first model.
        self.tokenizer_targets = places[0].tokenizer_targets
        self.engine_targets = places[0].engine_targets
        self.engine_admin_targets = places[0].engine_admin_targets
        self._lifeline = Lifeline()
        self._restarting = asyncio.Lock()  # one rolling restart at a time: two could stop both tokenizers at once
        self._ports: PublicPorts | None = None
        self._settings = settings
        try:
            if serve:
                self._ports = self._open_ports(settings.frontend)
            self._children = ServiceChildren(
                settings,
                places,
                self.directory,
                self._lifeline,
                ports=self._ports,
                log=self._log,
                adapt=adapt,
                adapt_child=adapt_child,
            )
            frontends, engine_cores = self._children.frontends(), self._children.engine_cores()
            workers, tokenizers = self._children.workers(), self._children.tokenizers()
        except BaseException:
            self.abandon()
            raise
        # Callers stop before their servers, so no peer is lost during a stop. The order of starting is the reverse: the worker,
        # which takes longest, starts first.
        groups = [frontends, engine_cores, [*workers, *tokenizers]]
        self.service_names = tuple(child.name for child in (*workers, *engine_cores, *tokenizers, *frontends))
        others = [child.name for child in (*engine_cores, *tokenizers, *frontends)]
        self._restart_order = [*self._children.worker_groups(), *([name] for name in others)]
        self._on_state = on_state
        self._supervisor = Supervisor(groups, policy=policy, on_state=self._note_state, stop_timeout_s=_STOP_TIMEOUT_S)
        self._lost_sockets = LostSockets(self._private, self._supervisor.without_sockets, self._restart_all)

    @property
    def frontend_settings(self) -> FrontendSettings:
        """The settings with which a frontend finds this stack."""
        return self._children.frontend_settings

    async def start(self, *, timeout_s: float) -> None:
        """Start the services and return when all of them accept requests; on failure no service is left running.

        Raises:
            TetradError: a service cannot run (FailedPrecondition), or did not become ready (Unavailable).
            TimeoutError: they were not ready within `timeout_s` seconds.
        """
        self._supervisor.start()
        try:
            async with asyncio.timeout(timeout_s):
                await self._supervisor.wait_ready()
        except BaseException:
            await self.close()
            raise

    async def wait_failed(self) -> None:
        """Wait until a service has failed finally, and raise its error; return when the stack was closed."""
        await self._supervisor.wait_failed()

    async def restart(self, *names: str, timeout_s: float) -> None:
        """Restart services one after the other, each when the one before accepts requests again; no request is lost.

        Workers that compute one model together restart together: those of two releases could not meet.
        A new frontend is ready before the old one retires: the old one accepts no new requests and ends when its own requests
        are finished, possibly after the end of this call.

        Args:
            names: some of `service_names`; none: all of them.
            timeout_s: for all of them together.

        Raises:
            InvalidRequest: there is no such service.
            TetradError: a service did not become ready again; `wait_failed` reports whether the whole stack has failed.
            TimeoutError: they were not ready within `timeout_s` seconds.
        """
        if unknown := set(names) - set(self.service_names):
            raise InvalidRequest(
                f"There is no service {min(unknown)!r}; there are {', '.join(self.service_names)}.", field="service"
            )
        async with asyncio.timeout(timeout_s):
            await self._restart_all(names or self.service_names)

    async def _restart_all(self, names: Sequence[str]) -> None:
        async with self._restarting:
            for group in self._restart_order:
                if chosen := [name for name in group if name in names]:
                    await self._restart(chosen)

    async def _restart(self, names: Sequence[str]) -> None:
        if kind_of(names[0]) == "frontend":
            # A retiring frontend then drains like a stopped one.
            timeout_s = self._settings.frontend.retire_timeout_s + self._children.frontend_stop_timeout_s + _RETIRE_MARGIN_S
            await self._supervisor.replace(self._children.frontend(number_of(names[0])), retire_timeout_s=timeout_s)
        else:
            await self._supervisor.restart(*names)

    def pids(self) -> dict[str, int]:
        """Return the process ids of the services that run."""
        return self._supervisor.pids()

    async def close(self) -> None:
        """Stop every service and remove the directory. Safe to call twice.

        This takes at most 5 s, or longer if the services' settings choose a longer drain_timeout_s or withdrawal_wait_s.
        If it is cancelled, the services are killed.
        """
        self._close_ports()  # the port is then closed when the frontend ends
        try:
            await self._lost_sockets.close()
            await self._supervisor.stop()
        except BaseException:  # such as a second Ctrl-C
            self.kill()
            raise
        self.abandon()

    def kill(self) -> None:
        """Kill every service and remove the directory; return at once. For a process that is about to end."""
        self._supervisor.kill()
        self.abandon()

    def abandon(self) -> None:
        """Close without waiting, when no event loop is left: the services end themselves when the lifeline breaks."""
        self._lifeline.close()
        self._close_ports()
        self._private.remove()

    def _note_state(self, name: str, state: ChildState, why: str) -> None:
        self._log.write("stack", f"{name} {state}{f' ({why})' if why else ''}")
        self._lost_sockets.note_state(name, state)
        if self._on_state is not None:
            self._on_state(name, state, why)

    def _open_ports(self, frontend: FrontendSettings) -> PublicPorts:
        ports = PublicPorts(frontend.host, frontend.port, frontend.grpc_port, uds=frontend.uds)
        write_url(self.directory, url_of(frontend))
        return ports

    def _close_ports(self) -> None:
        if self._ports is not None:
            self._ports.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
