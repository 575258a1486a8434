"""Local stack: runs the services of one machine as child processes on Unix sockets in a private directory.

Used by `tetrad serve` and by the blocking and async engines of a program. Decides addresses, the order of stopping and of a
rolling restart, and the lifeline; the supervisor does the rest. Invariant: the children end with this process, even if it is
killed (a pipe whose write end only this process holds), and the directory is removed with them.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self, TypeVar

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.further_models import FurtherModel
from tetrad.readiness import HealthTarget
from tetrad.services.errors import InvalidRequest, Unavailable
from tetrad.services.hub.model_files import CacheSettings
from tetrad.services.packages import require_packages
from tetrad.services.rpc.grpc_pollers import GRPC_POLLERS
from tetrad.services.settings import ServiceSettings, Settings, child_environment, replaced
from tetrad.stack.address_space import check_address_space
from tetrad.stack.child import Child, ChildState, OnState, RestartPolicy
from tetrad.stack.engine_place import EnginePlace, numbered
from tetrad.stack.lost_sockets import LostSockets
from tetrad.stack.model_place import ModelPlace, model_places
from tetrad.stack.placement import Placement
from tetrad.stack.private_directory import PrivateDirectory
from tetrad.stack.public_ports import PublicPorts
from tetrad.stack.stack_log import StackLog
from tetrad.stack.stack_url import url_of, write_url
from tetrad.stack.supervisor import Supervisor
from tetrad.stack.terminal_lines import line_renderer
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.worker_svc.config import WorkerSettings

# Together these are less than the 5 s within which a stack must have ended.
_FRONTEND_DRAIN_S = 1.2
_SERVICE_DRAIN_S = 0.5
_STOP_TIMEOUT_S = 1.6
# An engine core returns its unfinished requests at once: frontends send them to the next engine core, which continues where
# this one stopped. Waiting for them would delay all others, because no new requests are accepted meanwhile.
_ENGINE_CORE_DRAIN_S = 0.0
# Time added to what a retiring frontend gives its requests: it fails the requests that are left, and ends.
_RETIRE_MARGIN_S = _FRONTEND_DRAIN_S + _STOP_TIMEOUT_S
_NUM_TOKENIZERS_SERVED = 2
MAX_API_SERVERS = 32
"""The largest number of frontends of a stack."""
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})

HEALTH_NAMES = {
    "tokenizer": "tetrad.v1.TokenizerService",
    "worker": "tetrad.v1.WorkerService",
    "engine-core": "tetrad.v1.EngineCoreService",
    "frontend": "tetrad.v1.InferenceService",
}
"""Kind of a child (see `kind_of`) -> the gRPC service whose health status shows that it accepts requests."""

SETTINGS: tuple[type[Settings], ...] = (
    TokenizerSettings,
    EngineCoreSettings,
    WorkerSettings,
    FrontendSettings,
    CacheSettings,
)
"""The settings of all services that a stack runs: they define the possible TETRAD_* variables."""

S = TypeVar("S", bound=ServiceSettings)

Adapt = Callable[[str, ServiceSettings], ServiceSettings]
"""Takes a child's name and its planned settings, and returns the settings to use."""


@dataclass(frozen=True)
class StackSettings:
    """The settings of every service of a stack. The stack itself sets `listen`, targets and lifelines.

    Args:
        frontend: a served stack listens at its `host`, `port` and `grpc_port`.
        num_tokenizers: the number of tokenizers. None: two in a served stack, so that clients do not notice the loss of one (a
            new one takes longer to start than they should wait), else one.
        data_parallel_size: the number of engine cores, each with its own workers; the frontend distributes requests over them.
        tensor_parallel_size, pipeline_parallel_size: the numbers of shards and stages of the model; each shard of each stage is
            one worker of an engine core.
        api_server_count: the number of frontends of a served stack, which share its ports, limits and store of responses.
        further: the settings of further models behind the same frontends, each with its own other services. Of a further
            model's frontend settings only those that differ between models apply: names, parsers, sampling defaults, adapters.

    Raises:
        InvalidRequest: two models have the same name, or several frontends cannot share what the settings ask for.
    """

    tokenizer: TokenizerSettings
    engine_core: EngineCoreSettings
    worker: WorkerSettings
    frontend: FrontendSettings
    num_tokenizers: int | None = None
    data_parallel_size: int = 1
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    api_server_count: int = 1
    further: tuple["StackSettings", ...] = ()

    @property
    def num_ranks(self) -> int:
        """The number of workers of an engine core."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def models(self) -> tuple["StackSettings", ...]:
        """The settings of every model, in order."""
        return (self, *self.further)

    def __post_init__(self) -> None:
        """Check the names of the models, and the settings that several frontends must share."""
        owners = [name for model in self.models for name in model.frontend.names]
        if twice := next((name for name in owners if owners.count(name) > 1), None):
            raise InvalidRequest(f"Two models have the name {twice!r}; each needs names of its own.", field="also")
        count, most = self.api_server_count, MAX_API_SERVERS
        if not 1 <= count <= most:
            raise InvalidRequest(f"api_server_count must be between 1 and {most}, got {count}.", field="api_server_count")
        if count == 1:
            return
        if self.frontend.responses_store == ":memory:":
            text = "responses_store :memory: is of one frontend alone; with api_server_count above 1 use a file, or none."
            raise InvalidRequest(text, field="responses_store")
        if self.frontend.allow_runtime_lora_updating:
            text = "allow_runtime_lora_updating needs api_server_count 1: the other frontends would not know the adapters."
            raise InvalidRequest(text, field="allow_runtime_lora_updating")


class LocalStack:
    """Starts tokenizer, worker, engine core and, with `serve`, the frontend; keeps them running until it is closed.

    Args:
        settings: the settings of the services.
        serve: also run the frontend as a child; otherwise this process is the frontend, with `frontend_settings`.
        on_state: called at every change of a service's state.
        policy: the rules by which a service that died is started again.
        adapt: returns the final settings of each service, for tests that intercept calls between services.
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
        if serve and settings.worker.allow_functions:
            text = "allow_functions is for the own services of a program (LLM, AsyncLLM); a server runs no functions."
            raise InvalidRequest(text, field="allow_functions")
        if serve:
            require_packages("The frontend", ("frontend",))
        check_address_space()
        self._adapt = adapt or _as_they_are
        self._private = PrivateDirectory()
        self.directory = self._private.path
        self._log = StackLog(self.directory)
        num_tokenizers = _NUM_TOKENIZERS_SERVED if serve else 1
        self._places = list(
            model_places(self.directory, [(model, model.num_tokenizers or num_tokenizers) for model in settings.models])
        )
        # Of the first model.
        self.tokenizer_targets = self._places[0].tokenizer_targets
        self.engine_targets = self._places[0].engine_targets
        self.engine_admin_targets = self._places[0].engine_admin_targets
        self._lifeline, self._lifeline_write_end = os.pipe()
        self._num_frontends = 0
        self._restarting = asyncio.Lock()  # one rolling restart at a time: two could stop both tokenizers at once
        self._ports: PublicPorts | None = None
        if serve:
            frontend = settings.frontend
            try:
                self._ports = PublicPorts(frontend.host, frontend.port, frontend.grpc_port)
            except Unavailable:
                self.abandon()
                raise
            write_url(self.directory, url_of(frontend))
        self._settings = settings
        # Callers stop before their servers, so no peer is lost during a stop. The order of starting is the reverse: the worker,
        # which takes longest, starts first.
        ports, count = self._ports, settings.api_server_count
        frontends = [] if ports is None else [self._frontend(ports, number) for number in range(count)]
        models = list(zip(settings.models, self._places, strict=True))
        placement = Placement(settings.worker, sum(model.data_parallel_size * model.num_ranks for model in settings.models))
        engine_cores = [self._engine_core(model, at, each, placement) for model, at in models for each in at.engines]
        workers = [
            self._worker(model, each, rank, placement)
            for model, at in models
            for each in at.engines
            for rank in range(each.num_workers)
        ]
        tokenizers = [child for model, at in models for child in self._tokenizers(model, at)]
        groups = [frontends, engine_cores, [*workers, *tokenizers]]
        self.service_names = tuple(child.name for child in (*workers, *engine_cores, *tokenizers, *frontends))
        self._on_state = on_state
        self._supervisor = Supervisor(groups, policy=policy, on_state=self._note_state, stop_timeout_s=_STOP_TIMEOUT_S)
        self._lost_sockets = LostSockets(self._private, self._supervisor.without_sockets, self._restart_all)

    @property
    def frontend_settings(self) -> FrontendSettings:
        """The settings with which a frontend finds this stack."""
        return replaced(
            self._settings.frontend,
            tokenizer_targets=self.tokenizer_targets,
            engine_targets=self.engine_targets,
            engine_admin_targets=self.engine_admin_targets,
            further_models=tuple(map(_further_model, self._settings.further, self._places[1:])),
        )

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
            for name in self.service_names:
                if name in names:
                    await self._restart(name)

    async def _restart(self, name: str) -> None:
        if kind_of(name) == "frontend" and self._ports is not None:
            retire_timeout_s = self._settings.frontend.retire_timeout_s + _RETIRE_MARGIN_S
            successor = self._frontend(self._ports, number_of(name))
            await self._supervisor.replace(successor, retire_timeout_s=retire_timeout_s)
        else:
            await self._supervisor.restart(name)

    def pids(self) -> dict[str, int]:
        """Return the process ids of the services that run."""
        return self._supervisor.pids()

    async def close(self) -> None:
        """Stop every service within 5 s and remove the directory. Safe to call twice."""
        self._close_ports()  # the port is then closed when the frontend ends
        await self._lost_sockets.close()
        await self._supervisor.stop()
        self.abandon()

    def kill(self) -> None:
        """Kill every service and remove the directory; return at once. For a process that is about to end."""
        self._supervisor.kill()
        self.abandon()

    def abandon(self) -> None:
        """Close without waiting, when no event loop is left: the services end themselves when the lifeline breaks."""
        for fd in (self._lifeline, self._lifeline_write_end):
            if fd >= 0:
                os.close(fd)
        self._lifeline = self._lifeline_write_end = -1
        self._close_ports()
        self._private.remove()

    def _note_state(self, name: str, state: ChildState, why: str) -> None:
        self._log.write("stack", f"{name} {state}{f' ({why})' if why else ''}")
        self._lost_sockets.note_state(name, state)
        if self._on_state is not None:
            self._on_state(name, state, why)

    def _close_ports(self) -> None:
        if self._ports is not None:
            self._ports.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _tokenizers(self, model: StackSettings, at: ModelPlace) -> list[Child]:
        drained = replaced(model.tokenizer, drain_timeout_s=_SERVICE_DRAIN_S)
        return [
            self._child(name, "tokenizer_svc", _with_own_port(replaced(drained, listen=target), number))
            for number, name, target in zip(at.tokenizers, at.tokenizer_names, at.tokenizer_targets, strict=True)
        ]

    def _worker(self, model: StackSettings, place: EnginePlace, rank: int, placement: Placement) -> Child:
        number = place.worker_numbers[rank]
        settings = placement.worker(
            replaced(
                model.worker,
                listen=place.worker_targets[rank],
                rank=rank,
                drain_timeout_s=_SERVICE_DRAIN_S,
            )
        )
        variables = placement.environment(number)
        return self._child(place.worker_names[rank], "worker_svc", _with_own_port(settings, number), variables=variables)

    def _engine_core(self, model: StackSettings, at: ModelPlace, place: EnginePlace, placement: Placement) -> Child:
        settings = placement.engine_core(
            replaced(
                model.engine_core,
                listen=place.target,
                admin_listen=place.admin_target,
                data_parallel_rank=model.engine_core.data_parallel_rank + place.rank,
                worker_target=",".join(place.worker_targets),
                tensor_parallel_size=model.tensor_parallel_size,
                pipeline_parallel_size=model.pipeline_parallel_size,
                tokenizer_targets=at.tokenizer_targets,
                drain_timeout_s=_ENGINE_CORE_DRAIN_S,
            )
        )
        return self._child(place.name, "engine_core_svc", _with_own_port(settings, place.number))

    def _frontend(self, ports: PublicPorts, number: int) -> Child:
        # Two frontends of one name may run at a time: each process has its own socket for the supervisor, which must not
        # confuse them.
        socket = numbered("frontend", self._num_frontends)
        self._num_frontends += 1
        is_alone = self._settings.api_server_count == 1
        settings = replaced(
            self.frontend_settings,
            port=ports.port,
            grpc_port=ports.grpc_port,
            http_fd=ports.http_fd,
            private_listen=f"unix:{self.directory}/{socket}.sock",
            drain_timeout_s=_FRONTEND_DRAIN_S,
            peers_dir=None if is_alone else self.directory / "frontends",
        )
        return self._child(numbered("frontend", number), "frontend", _with_own_port(settings, number), ports.http_fd)

    def _child(
        self,
        name: str,
        package: str,
        settings: ServiceSettings,
        *pass_fds: int,
        variables: Mapping[str, str] = _NO_VARIABLES,
    ) -> Child:
        settings = self._adapt(name, replaced(settings, lifeline_fd=self._lifeline))
        # If the settings do not choose a form of log lines, they are JSON; on a terminal they are rendered as readable text.
        render = line_renderer(name) if settings.log_json is None else str
        address = settings.private_listen if isinstance(settings, FrontendSettings) else settings.listen
        return Child(
            name=name,
            command=_python_module(f"tetrad.{package}"),
            environment={**GRPC_POLLERS, **child_environment(settings), **variables},
            health=HealthTarget(address, HEALTH_NAMES[kind_of(name)]),
            pass_fds=(self._lifeline, *pass_fds),
            program=kind_of(name),
            on_line=self._log.of(name),
            render=render,
        )


def kind_of(name: str) -> str:
    """Return the kind of service in the name of a child or socket: "tokenizer" for "tokenizer-2"."""
    kind, _, number = name.rpartition("-")
    return kind if number.isdigit() else name


def number_of(name: str) -> int:
    """Return the number of a child among those of its kind, from 0: 1 for "tokenizer-2"."""
    kind = kind_of(name)
    return 0 if kind == name else int(name.removeprefix(f"{kind}-")) - 1


def _further_model(settings: StackSettings, place: ModelPlace) -> FurtherModel:
    """Return the frontend's settings of a further model."""
    fields = {name: getattr(settings.frontend, name) for name in FurtherModel.model_fields}
    targets = {name: getattr(place, name) for name in ("tokenizer_targets", "engine_targets", "engine_admin_targets")}
    return FurtherModel(**{**fields, **targets})


def _with_own_port(settings: S, number: int) -> S:
    """Return the settings of service `number` of a kind, counted from 0, with its own metrics port; 0 (any port) stays 0."""
    first = settings.metrics_port
    return replaced(settings, metrics_port=first + number) if first else settings


def _as_they_are(name: str, settings: ServiceSettings) -> ServiceSettings:  # noqa: ARG001 - the shape of Adapt
    return settings


def _python_module(name: str) -> Sequence[str]:
    return (sys.executable, "-m", name)
