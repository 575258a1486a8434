"""Custom classes: imports the logits processors that the worker's setting names, and makes their objects for a model.

Only the worker runs code of these classes. What is wrong with one of them becomes a FailedPrecondition, which ends the start
with one line.
"""

import importlib
import inspect
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from tetrad.services.errors import FailedPrecondition, one_line
from tetrad.worker_svc.core.logits_processor import (
    ModelConfig,
    ProcessorConfig,
    RequestLogitsProcessor,
    RequestParams,
    SchedulerConfig,
)

_NEEDED = ("new_req_logits_processor", "is_argmax_invariant")


class Processor(Protocol):
    """An object of a class like AdapterLogitsProcessor."""

    def new_req_logits_processor(self, params: RequestParams) -> RequestLogitsProcessor | None:
        """See AdapterLogitsProcessor."""

    def is_argmax_invariant(self) -> bool:
        """See AdapterLogitsProcessor."""


class NamedProcessor(NamedTuple):
    """A processor, and the name of its class in the setting."""

    name: str
    processor: Processor

    def validate(self, params: RequestParams) -> None:
        """Raise the error of the class's validate_params, if it has this method."""
        validate = getattr(self.processor, "validate_params", None)
        if validate is not None:
            validate(params)


def import_classes(names: Sequence[str]) -> tuple[tuple[str, type], ...]:
    """Return (name, class) for the names "module:Class"; raise FailedPrecondition for the first one that is no processor."""
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise FailedPrecondition(f"logits_processors: {repeated} is given twice.", field="logits_processors")
    return tuple((name, _import(name)) for name in names)


def make_processors(
    classes: Sequence[tuple[str, type]], device: torch.device, *, vocab_size: int, max_model_len: int, max_num_seqs: int
) -> tuple[NamedProcessor, ...]:
    """Return the objects of the classes; raise FailedPrecondition if one cannot be made, or belongs behind the temperature."""
    config = ProcessorConfig(ModelConfig(vocab_size, max_model_len), SchedulerConfig(max_num_seqs))
    return tuple(_make(name, cls, config, device) for name, cls in classes)


def _import(name: str) -> type:
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise _refused(name, "write it as module:Class")
    try:
        found: object = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise _refused(name, f"it cannot be imported ({type(error).__name__}: {one_line(error)})") from error
    if not isinstance(found, type):
        raise _refused(name, f"it is a {type(found).__name__}, no class")
    missing = [method for method in _NEEDED if not callable(getattr(found, method, None))]
    if missing:
        raise _refused(name, f"it has no {' and no '.join(missing)}; derive it from tetrad.logits_processors")
    if inspect.isabstract(found):
        raise _refused(name, "it is abstract")
    return found


def _make(name: str, cls: type, config: ProcessorConfig, device: torch.device) -> NamedProcessor:
    try:
        processor: Processor = cls(config, device, device.type == "cuda")
        comes_last = processor.is_argmax_invariant()
    except Exception as error:
        raise _refused(name, f"it cannot be made ({type(error).__name__}: {one_line(error)})") from error
    if comes_last:
        raise _refused(name, "is_argmax_invariant() is True, and no processor is applied after the temperature")
    return NamedProcessor(name, processor)


def _refused(name: str, reason: str) -> FailedPrecondition:
    return FailedPrecondition(f"logits_processors: {name[:200]} cannot be used: {reason}.", field="logits_processors")
