"""Builds a model of the transformers backend: loads the module, finds its attention, and compares results with the module's.

Every refusal is one line with the architecture and the reason.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from tetrad.services.errors import ModelError, TetradError, one_line
from tetrad.worker_svc.families.foreign import Foreign
from tetrad.worker_svc.models.interface import ModelSizes
from tetrad.worker_svc.models.transformers_backend.interface import UnservableError, answered_by
from tetrad.worker_svc.models.transformers_backend.loading import LoadedModule, load_module
from tetrad.worker_svc.models.transformers_backend.model import TransformersModel
from tetrad.worker_svc.models.transformers_backend.module import base_of
from tetrad.worker_svc.models.transformers_backend.probe import LayerCall, Probe
from tetrad.worker_svc.models.transformers_backend.self_check import check

_PROBED = 3
"""Number of tokens in the probe."""


def build(
    foreign: Foreign, path: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor] | None, *, seed: int
) -> tuple[TransformersModel, LoadedModule]:
    """Return a model in float32 with KV pages, and its module; raise ModelError if it cannot be served.

    Arguments: see load_module.
    """
    with _refusals(foreign):
        loaded = load_module(foreign, path, config, tensors, seed=seed)
        model = TransformersModel(loaded.module, _layers(loaded.module, loaded), loaded)
        check(model, loaded.module)
    return model, loaded


def build_module(
    foreign: Foreign,
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor] | None,
    *,
    seed: int,
    dtype: torch.dtype,
) -> tuple[LoadedModule, list[LayerCall]]:
    """Return a module with weights of this type, in host memory, and the attention of its layers.

    The module is built and compared in float32 first, since the difference from other attention is too large in other types.
    Arguments and errors: see `build`.
    """
    _, loaded = build(foreign, path, config, tensors, seed=seed)
    with _refusals(foreign):
        if dtype != torch.float32:
            loaded = load_module(foreign, path, config, tensors, seed=seed, dtype=dtype)
        return loaded, _layers(loaded.module, loaded)


@contextmanager
def _refusals(foreign: Foreign) -> Iterator[None]:
    """Convert the errors of a model's code into a ModelError with the architecture's name."""
    try:
        yield
    except UnservableError as error:
        raise _refusal(foreign, str(error)) from error
    except (TetradError, MemoryError):
        raise
    except Exception as error:  # a model's code can raise any error in a forward pass
        raise _refusal(foreign, f"its code fails: {one_line(error)}") from error


def _refusal(foreign: Foreign, reason: str) -> ModelError:
    return ModelError(f"{foreign.architecture[:80]} would run through transformers' code, but cannot be served: {reason}.")


@torch.inference_mode()
def _layers(module: Any, sizes: ModelSizes) -> list[LayerCall]:
    """Return the attention of each layer."""
    if base_of(module) is module:
        raise UnservableError("its code does not tell the model from its output layer")
    probe = Probe()
    tokens = torch.arange(_PROBED)
    with answered_by(probe):
        logits = module(input_ids=tokens[None], position_ids=tokens[None], use_cache=False, return_dict=True).logits
    if not probe.layers:
        raise UnservableError("it has no attention")
    if logits.shape[-1] != sizes.vocab_size:
        raise UnservableError(f"it makes {logits.shape[-1]} logits for a vocab_size of {sizes.vocab_size}")
    return probe.layers
