"""Local stack: the services of one machine as child processes on Unix sockets in a private directory.

Run by `tetrad serve` and by the blocking and async engines of a program. Decides addresses, order of stopping and the lifeline;
the supervisor does the rest. Invariant: the children end with this process, however it ends (a pipe whose write end only this
process holds), and the directory goes with them.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from tetrad.child import Child, OnState, RestartPolicy
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.frontend.config import FrontendSettings
from tetrad.private_directory import PrivateDirectory
from tetrad.readiness import HealthTarget
from tetrad.services.settings import ServiceSettings, child_environment
from tetrad.supervisor import Supervisor
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.worker_svc.config import WorkerSettings

# Together under the 5 s in which a stack promises to be gone.
_FRONTEND_DRAIN_S = 1.2
_SERVICE_DRAIN_S = 0.5
_STOP_TIMEOUT_S = 1.6
_NUM_TOKENIZERS_SERVED = 2

HEALTH_NAMES = {
    "tokenizer": "tetrad.v1.TokenizerService",
    "worker": "tetrad.v1.WorkerService",
    "engine-core": "tetrad.v1.EngineCoreService",
    "frontend": "tetrad.v1.InferenceService",
}
"""Kind of a child -> the gRPC service whose health says that it takes work; see `kind_of`."""

S = TypeVar("S", bound=ServiceSettings)

Adapt = Callable[[str, ServiceSettings], ServiceSettings]
"""Takes a child's name and the settings it would get, and returns those it gets."""


@dataclass(frozen=True)
class StackSettings:
    """The settings of every service of a stack. `listen`, targets and lifelines are the stack's own business.

    Args:
        frontend: its `host`, `port` and `grpc_port` are where a served stack listens.
        num_tokenizers: how many to run. None: two where clients are served, so that one that is lost costs them nothing (a new
            one takes longer to start than they should wait), else one.
    """

    tokenizer: TokenizerSettings
    engine_core: EngineCoreSettings
    worker: WorkerSettings
    frontend: FrontendSettings
    num_tokenizers: int | None = None


class LocalStack:
    """Starts tokenizer, worker and engine core, and the frontend if asked, and keeps them running until closed.

    Args:
        settings: of the services.
        serve: run the frontend as a child, too; otherwise this process is one, with `frontend_settings`.
        on_state: told about every change of a service's state.
        policy: when a service that died is started again.
        adapt: has the last word on each service's settings, for tests that stand between services.
    """

    def __init__(
        self,
        settings: StackSettings,
        *,
        serve: bool = False,
        on_state: OnState | None = None,
        policy: RestartPolicy | None = None,
        adapt: Adapt | None = None,
    ) -> None:
        self._adapt = adapt or _as_they_are
        self._private = PrivateDirectory()
        self.directory = self._private.path
        num_tokenizers = settings.num_tokenizers or (_NUM_TOKENIZERS_SERVED if serve else 1)
        self.tokenizer_targets = tuple(f"unix:{self.directory}/{name}.sock" for name in _tokenizer_names(num_tokenizers))
        self.engine_target = f"unix:{self.directory}/engine-core.sock"
        self._worker_target = f"unix:{self.directory}/worker.sock"
        self._lifeline, self._lifeline_write_end = os.pipe()
        self._settings = settings
        # Whoever calls stops before whom it calls: nobody sees a peer vanish.
        frontends = [self._frontend()] if serve else []
        groups = [frontends, [self._engine_core()], [*self._tokenizers(), self._worker()]]
        self._supervisor = Supervisor(groups, policy=policy, on_state=on_state, stop_timeout_s=_STOP_TIMEOUT_S)

    @property
    def frontend_settings(self) -> FrontendSettings:
        """Settings with which a frontend finds this stack."""
        return _replace(self._settings.frontend, tokenizer_targets=self.tokenizer_targets, engine_targets=(self.engine_target,))

    async def start(self, *, timeout_s: float) -> None:
        """Start the services and return when all of them take work; on failure nothing is left running.

        Raises:
            TetradError: a service cannot run (FailedPrecondition), or did not come up (Unavailable).
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
        """Wait until a service is given up, and raise why; returns when the stack was closed."""
        await self._supervisor.wait_failed()

    def pids(self) -> dict[str, int]:
        """Return the process ids of the services that run."""
        return self._supervisor.pids()

    async def close(self) -> None:
        """Stop every service within 5 s and remove the directory. Safe to call twice."""
        await self._supervisor.stop()
        self.abandon()

    def abandon(self) -> None:
        """Let go without waiting, where no event loop is left: the services end themselves when the lifeline breaks."""
        for fd in (self._lifeline, self._lifeline_write_end):
            if fd >= 0:
                os.close(fd)
        self._lifeline = self._lifeline_write_end = -1
        self._private.remove()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _tokenizers(self) -> list[Child]:
        drained = _replace(self._settings.tokenizer, drain_timeout_s=_SERVICE_DRAIN_S)
        names = _tokenizer_names(len(self.tokenizer_targets))
        return [
            self._child(name, "tokenizer_svc", _replace(drained, listen=target))
            for name, target in zip(names, self.tokenizer_targets, strict=True)
        ]

    def _worker(self) -> Child:
        settings = _replace(self._settings.worker, listen=self._worker_target, drain_timeout_s=_SERVICE_DRAIN_S)
        return self._child("worker", "worker_svc", settings)

    def _engine_core(self) -> Child:
        settings = _replace(
            self._settings.engine_core,
            listen=self.engine_target,
            worker_target=self._worker_target,
            tokenizer_targets=self.tokenizer_targets,
            drain_timeout_s=_SERVICE_DRAIN_S,
        )
        return self._child("engine-core", "engine_core_svc", settings)

    def _frontend(self) -> Child:
        settings = self.frontend_settings
        if settings.grpc_port is None:  # its health must be seen all the same
            settings = _replace(settings, listen=f"unix:{self.directory}/frontend.sock")
        settings = _replace(settings, drain_timeout_s=_FRONTEND_DRAIN_S)
        return self._child("frontend", "frontend", settings)

    def _child(self, name: str, package: str, settings: ServiceSettings) -> Child:
        settings = self._adapt(name, _replace(settings, lifeline_fd=self._lifeline))
        if settings.log_json is None:  # its stderr is our pipe: what counts is where we write its lines
            settings = _replace(settings, log_json=not sys.stderr.isatty())
        address = settings.grpc_address if isinstance(settings, FrontendSettings) else settings.listen
        assert address is not None
        return Child(
            name=name,
            command=_python_module(f"tetrad.{package}"),
            environment=child_environment(settings),
            health=HealthTarget(address, HEALTH_NAMES[kind_of(name)]),
            pass_fds=(self._lifeline,),
            program=kind_of(name),
        )


def kind_of(name: str) -> str:
    """Return the kind of service that a child, and its socket, are named after: "tokenizer" for "tokenizer-2"."""
    kind, _, number = name.rpartition("-")
    return kind if number.isdigit() else name


def _tokenizer_names(count: int) -> list[str]:
    return ["tokenizer", *(f"tokenizer-{number}" for number in range(2, count + 1))]


def _as_they_are(name: str, settings: ServiceSettings) -> ServiceSettings:  # noqa: ARG001 - the shape of Adapt
    return settings


def _python_module(name: str) -> Sequence[str]:
    return (sys.executable, "-m", name)


def _replace(settings: S, **changes: object) -> S:
    """Return the settings with other values, validated; a copy with `model_copy` would not be."""
    return type(settings)(**{**settings.model_dump(), **changes})
