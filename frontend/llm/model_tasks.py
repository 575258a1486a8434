"""ModelTasks: finds the models of a server that support a task, for the error of a request to a model that does not."""

from collections.abc import Iterable
from typing import Protocol

from tetrad.frontend.request.pooling import PoolingFacts

GENERATE = "generate"
"""The name of the task of models that generate; the pooling tasks have names of their own."""
TRANSCRIBE = "transcription"
"""vLLM's name of the task of models that transcribe, which do nothing else."""


class TaskModel(Protocol):
    """A model with its tasks; AsyncLLM is one."""

    @property
    def started(self) -> bool:
        """Whether the services of the model have been reached."""

    @property
    def pooling(self) -> PoolingFacts | None:
        """The pooling facts of the model; None: it generates or transcribes."""

    @property
    def transcribes(self) -> bool:
        """Whether the model turns speech into text."""

    @property
    def all_names(self) -> list[str]:
        """The names of the model; errors show the first one."""


class ModelTasks:
    """The models of one server, searched by task."""

    def __init__(self) -> None:
        self._models: Iterable[TaskModel] = ()

    def open(self, models: Iterable[TaskModel]) -> None:
        """Search these models from now on; the collection may change later."""
        self._models = models

    def hint(self, *tasks: str) -> str:
        """Return a sentence, to be appended to an error, that names the models with one of these tasks; empty: none has."""
        wanted = set(tasks)
        able = [model for model in self._models if model.started and not wanted.isdisjoint(tasks_of(model))]
        names = [f"`{model.all_names[0]}`" for model in able]
        if not names:
            return ""
        if len(names) == 1:
            return f" The model {names[0]} of this server does that."
        return f" The models {', '.join(names)} of this server do that."


def use_without_pooling(*, transcribes: bool) -> str:
    """Return what a model without pooling tasks does and the endpoint for it, for errors."""
    return "it transcribes. Use /v1/audio/transcriptions." if transcribes else "it generates. Use /v1/completions."


def tasks_of(model: TaskModel) -> tuple[str, ...]:
    """Return the tasks of a model, by vLLM's names."""
    facts = model.pooling
    if facts is None:
        return (TRANSCRIBE,) if model.transcribes else (GENERATE,)
    return (GENERATE, *facts.tasks) if facts.generates else facts.tasks
