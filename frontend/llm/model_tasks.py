"""ModelTasks: finds the models of a server that have a task, for the error of a request to one that does not have it."""

from collections.abc import Iterable
from typing import Protocol

from tetrad.frontend.request.pooling import PoolingFacts

GENERATE = "generate"
"""The task of models that generate, beside those of pooling."""


class TaskModel(Protocol):
    """A model with its tasks; AsyncLLM is one."""

    @property
    def started(self) -> bool:
        """Whether its services have been reached."""

    @property
    def pooling(self) -> PoolingFacts | None:
        """What it pools; None: it generates."""

    @property
    def all_names(self) -> list[str]:
        """Its names; the first one is shown."""


class ModelTasks:
    """The models of one server."""

    def __init__(self) -> None:
        self._models: Iterable[TaskModel] = ()

    def open(self, models: Iterable[TaskModel]) -> None:
        """Find tasks among these models from now on; they may change."""
        self._models = models

    def hint(self, *tasks: str) -> str:
        """Return a sentence for the end of an error that names the models with one of these tasks; empty: there are none."""
        names = [f"`{model.all_names[0]}`" for model in self._models if model.started and _has(model.pooling, tasks)]
        if not names:
            return ""
        if len(names) == 1:
            return f" The model {names[0]} of this server does that."
        return f" The models {', '.join(names)} of this server do that."


def _has(facts: PoolingFacts | None, tasks: tuple[str, ...]) -> bool:
    generates = facts is None or facts.generates
    found = () if facts is None else facts.tasks
    return (generates and GENERATE in tasks) or any(task in found for task in tasks)
