"""ServiceChildren: describes the process of each service of a local stack: its settings, command and environment.

Called by the local stack, at its start and for each new frontend. Connects the services through their settings: addresses,
shares of the machine, lifeline. Knows the order of neither starting nor stopping, and starts nothing.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.further_models import FurtherModel
from tetrad.readiness import HealthTarget
from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.grpc_pollers import GRPC_POLLERS
from tetrad.services.settings import ServiceSettings, child_environment, replaced
from tetrad.stack.child import Child
from tetrad.stack.engine_place import EnginePlace
from tetrad.stack.lifeline import Lifeline
from tetrad.stack.model_place import ModelPlace
from tetrad.stack.placement import Placement
from tetrad.stack.public_ports import PublicPorts
from tetrad.stack.service_names import HEALTH_NAMES, kind_of, numbered
from tetrad.stack.stack_log import StackLog
from tetrad.stack.stack_settings import StackSettings
from tetrad.stack.terminal_lines import line_renderer

# Seconds that a stopped frontend gives its requests, unless its settings choose a time.
_FRONTEND_DRAIN_S = 1.2
# Seconds after these in which a stopped frontend fails the requests that are left, and ends.
_FRONTEND_END_S = 0.4
# Seconds that a stopped tokenizer or worker gives its calls, unless its settings choose a time.
_SERVICE_DRAIN_S = 0.5
# Seconds after a chosen time in which a stopped service ends.
_SERVICE_END_S = 1.1
# An engine core returns its unfinished requests at once: frontends send them to the next engine core, which continues where
# this one stopped. Waiting for them would delay all others, because no new requests are accepted meanwhile.
_ENGINE_CORE_DRAIN_S = 0.0
_MAX_PORT = 65535
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})

S = TypeVar("S", bound=ServiceSettings)

Adapt = Callable[[str, ServiceSettings], ServiceSettings]
"""Takes a child's name and its planned settings, and returns the settings to use."""

AdaptChild = Callable[[Child], Child]
"""Takes the planned description of a child, and returns the one to use."""


class ServiceChildren:
    """The children of one stack.

    Args:
        settings: the settings of the services.
        places: the names and addresses of each model's services.
        directory: the directory of the frontends' sockets.
        lifeline: the pipe that every child inherits.
        ports: the public ports; None: the stack has no frontend.
        log: receives every child's log lines.
        adapt: returns the final settings of each service; None: the planned ones.
        adapt_child: returns the final description of each child; None: the planned one.

    Raises:
        InvalidRequest: there are fewer GPUs than workers that need one. Its methods raise it if two services would have one
            metrics port.
    """

    def __init__(
        self,
        settings: StackSettings,
        places: Sequence[ModelPlace],
        directory: Path,
        lifeline: Lifeline,
        *,
        ports: PublicPorts | None,
        log: StackLog,
        adapt: Adapt | None = None,
        adapt_child: AdaptChild | None = None,
    ) -> None:
        self._settings, self._places, self._directory = settings, places, directory
        self._lifeline, self._ports, self._log = lifeline, ports, log
        self._adapt, self._adapt_child = adapt or _as_they_are, adapt_child or _as_it_is
        self._models = list(zip(settings.models, places, strict=True))
        num_workers = sum(model.num_engines * model.num_ranks for model in settings.models)
        self._placement = Placement(settings.worker, num_workers)
        self._metrics_ports: dict[tuple[str, int], str] = {}
        self._num_frontends = 0

    @property
    def frontend_settings(self) -> FrontendSettings:
        """The settings with which a frontend finds this stack, with its public ports if there are any."""
        first, ports = self._places[0], self._ports
        return replaced(
            self._settings.frontend,
            **({} if ports is None else {"port": ports.port, "grpc_port": ports.grpc_port}),
            tokenizer_targets=first.tokenizer_targets,
            engine_targets=first.engine_targets,
            engine_admin_targets=first.engine_admin_targets,
            further_models=tuple(map(_further_model, self._settings.further, self._places[1:])),
            # One model that reads images needs larger messages than the others.
            max_message_bytes=max(model.frontend.max_message_bytes for model in self._settings.models),
        )

    @property
    def frontend_stop_timeout_s(self) -> float:
        """The longest time that a stopped frontend may take: its drain, and the time to end."""
        return self._settings.frontend.withdrawal_wait_s + self._frontend_drain_s + _FRONTEND_END_S

    @property
    def _frontend_drain_s(self) -> float:
        return _drain_s(self._settings.frontend, _FRONTEND_DRAIN_S)

    def frontends(self) -> list[Child]:
        """Return the frontends; none if the stack has no public ports."""
        return [] if self._ports is None else [self.frontend(number) for number in range(self._settings.api_server_count)]

    def frontend(self, number: int) -> Child:
        """Return a new process of frontend `number`, counted from 0. The stack must have public ports."""
        ports = self._ports
        assert ports is not None
        # Two frontends of one name may run at a time: each process has its own socket for the supervisor, which must not
        # confuse them.
        socket = numbered("frontend", self._num_frontends)
        self._num_frontends += 1
        is_alone = self._settings.api_server_count == 1
        settings = replaced(
            self.frontend_settings,
            http_fd=ports.http_fd,
            private_listen=f"unix:{self._directory}/{socket}.sock",
            drain_timeout_s=self._frontend_drain_s,
            peers_dir=None if is_alone else self._directory / "frontends",
        )
        name = numbered("frontend", number)
        child = self._child(name, "frontend", self._with_own_port(name, settings, number), ports.http_fd)
        return replace(child, stop_timeout_s=self.frontend_stop_timeout_s)

    def engine_cores(self) -> list[Child]:
        """Return the engine cores of every model."""
        return [self._engine_core(model, at, each) for model, at in self._models for each in at.engines]

    def _engine_core(self, model: StackSettings, at: ModelPlace, place: EnginePlace) -> Child:
        settings = self._placement.engine_core(
            replaced(
                model.engine_core,
                listen=place.target,
                admin_listen=place.admin_target,
                data_parallel_rank=model.engine_core.data_parallel_rank + place.rank,
                worker_target=",".join(place.worker_targets),
                tensor_parallel_size=model.tensor_parallel_size,
                pipeline_parallel_size=model.pipeline_parallel_size,
                tokenizer_targets=at.tokenizer_targets,
                **self._kv_transfer(model, place),
                drain_timeout_s=_drain_s(model.engine_core, _ENGINE_CORE_DRAIN_S),
            )
        )
        settings = self._with_own_port(place.name, settings, place.number)
        return self._child(place.name, "engine_core_svc", settings)

    def _kv_transfer(self, model: StackSettings, place: EnginePlace) -> dict[str, object]:
        """Return the role of an engine core, and the workers from which it may read, if some compute prompts for others."""
        if not model.num_prefill_engines:
            return {}
        role = "consumer" if place.rank < model.data_parallel_size else "producer"
        return {"kv_role": role, "kv_peers": (f"unix:{self._directory}/*",)}

    def workers(self) -> list[Child]:
        """Return the workers of every engine core."""
        return [
            self._worker(model, at, each, rank)
            for model, at in self._models
            for each in at.engines
            for rank in range(each.num_workers)
        ]

    def worker_groups(self) -> list[list[str]]:
        """Return the names of the workers that need one release and one model, and therefore restart together.

        They are the ranks of an engine core, or of all engine cores of a model that share its experts.
        """
        groups = []
        for model, at in self._models:
            of_engines = [each.worker_names for each in at.engines]
            groups += [list(chain.from_iterable(of_engines))] if model.shares_experts else of_engines
        return groups

    def _worker(self, model: StackSettings, at: ModelPlace, place: EnginePlace, rank: int) -> Child:
        number = place.worker_numbers[rank]
        sharing = at.engines if model.shares_experts else ()
        settings = self._placement.worker(
            replaced(
                model.worker,
                listen=place.worker_targets[rank],
                rank=rank,
                expert_targets=tuple(each.expert_targets[rank] for each in sharing),
                expert_index=place.rank if sharing else 0,
                drain_timeout_s=_drain_s(model.worker, _SERVICE_DRAIN_S),
            )
        )
        variables = self._placement.environment(number)
        if model.worker.logits_processors:
            variables = {**variables, **_module_paths()}
        name = place.worker_names[rank]
        return self._child(name, "worker_svc", self._with_own_port(name, settings, number), variables=variables)

    def tokenizers(self) -> list[Child]:
        """Return the tokenizers of every model."""
        return [child for model, at in self._models for child in self._tokenizers(model, at)]

    def _tokenizers(self, model: StackSettings, at: ModelPlace) -> list[Child]:
        drained = replaced(model.tokenizer, drain_timeout_s=_drain_s(model.tokenizer, _SERVICE_DRAIN_S))
        return [
            self._child(name, "tokenizer_svc", self._with_own_port(name, replaced(drained, listen=target), number))
            for number, name, target in zip(at.tokenizers, at.tokenizer_names, at.tokenizer_targets, strict=True)
        ]

    def _with_own_port(self, name: str, settings: S, number: int) -> S:
        """Return the settings of service `number` of a kind, from 0, with its own metrics port; 0, any port, stays 0."""
        first = settings.metrics_port
        if not first:
            return settings
        port = first + number
        if port > _MAX_PORT:
            text = f"metrics_port {first} leaves no port for {name}, which would have {port}; the largest is {_MAX_PORT}."
            raise InvalidRequest(text, field="metrics_port")
        if (other := self._metrics_ports.setdefault((settings.metrics_host, port), name)) != name:
            text = f"metrics_port {first}: port {port} would be that of {other} and of {name}; choose ports further apart."
            raise InvalidRequest(text, field="metrics_port")
        return replaced(settings, metrics_port=port)

    def _child(
        self,
        name: str,
        package: str,
        settings: ServiceSettings,
        *pass_fds: int,
        variables: Mapping[str, str] = _NO_VARIABLES,
    ) -> Child:
        settings = self._adapt(name, replaced(settings, lifeline_fd=self._lifeline.read_end))
        # If the settings do not choose a form of log lines, they are JSON; on a terminal they are rendered as readable text.
        render = line_renderer(name) if settings.log_json is None else str
        ending_s = settings.withdrawal_wait_s + settings.drain_timeout_s
        address = settings.private_listen if isinstance(settings, FrontendSettings) else settings.listen
        child = Child(
            name=name,
            command=(sys.executable, "-m", f"tetrad.{package}"),
            environment={**GRPC_POLLERS, **child_environment(settings), **variables},
            health=HealthTarget(address, HEALTH_NAMES[kind_of(name)]),
            pass_fds=(self._lifeline.read_end, *pass_fds),
            program=kind_of(name),
            on_line=self._log.of(name),
            render=render,
            stop_timeout_s=None if ending_s <= _SERVICE_DRAIN_S else ending_s + _SERVICE_END_S,
            is_led=kind_of(name) == "worker",  # by its engine core, which may sleep
        )
        return self._adapt_child(child)


def _module_paths() -> Mapping[str, str]:
    """Return the variable by which a child finds the modules that this process finds, after those of the directory it is in."""
    return {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _further_model(settings: StackSettings, place: ModelPlace) -> FurtherModel:
    """Return the frontend's settings of a further model."""
    fields = {name: getattr(settings.frontend, name) for name in FurtherModel.model_fields}
    targets = {name: getattr(place, name) for name in ("tokenizer_targets", "engine_targets", "engine_admin_targets")}
    return FurtherModel(**{**fields, **targets})


def _drain_s(settings: ServiceSettings, unless_chosen: float) -> float:
    return settings.drain_timeout_s if "drain_timeout_s" in settings.model_fields_set else unless_chosen


def _as_they_are(name: str, settings: ServiceSettings) -> ServiceSettings:  # noqa: ARG001 - the shape of Adapt
    return settings


def _as_it_is(child: Child) -> Child:
    return child
