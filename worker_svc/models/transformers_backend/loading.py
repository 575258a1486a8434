"""Loads a causal model of transformers: its class, its config and its weights.

Weights are read by this worker's readers of files. A model's own code (auto_map) runs only if the worker was started with
trust_remote_code.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tetrad.services.errors import ModelError, one_line
from tetrad.worker_svc.checkpoint.own_output import warn_not_tied
from tetrad.worker_svc.checkpoint.source import DOWNLOAD_AGAIN
from tetrad.worker_svc.families.foreign import CODE_CLASS, Foreign
from tetrad.worker_svc.models.transformers_backend.interface import IMPLEMENTATION, UnservableError, register
from tetrad.worker_svc.models.transformers_backend.longrope import fix_longrope
from tetrad.worker_svc.models.transformers_backend.quiet import quiet

_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class LoadedModule:
    """A causal model of transformers.

    Attributes:
        module: the module, in evaluation mode, with our attention functions.
        vocab_size, max_position_embeddings, hidden_size, num_layers: values of its text config.
    """

    module: Any
    vocab_size: int
    max_position_embeddings: int
    hidden_size: int
    num_layers: int
    embedding_size: int = 0  # embeddings in place of token ids are not supported


def load_module(
    foreign: Foreign,
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor] | None,
    *,
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> LoadedModule:
    """Return the model; raise ModelError if its files are wrong, UnservableError if paged attention cannot run it.

    Args:
        foreign: the origin of the model's class.
        path: path of its directory.
        config: the values of its config.json, with overrides.
        tensors: its weights, under transformers' names; None: random weights.
        seed: seed of random weights.
        dtype: type of the weights.
    """
    register()
    with _errors_of(foreign.architecture):
        model_class, settings = _class_and_config(foreign, path, config)
    check_class(model_class, settings)
    with _errors_of(foreign.architecture), quiet():
        if tensors is None:
            module = _random(model_class, settings, seed, dtype)
        else:
            module = _filled(model_class, settings, tensors, dtype)
            if _has_own_output(module, settings):
                warn_not_tied(foreign.architecture)
    text = settings.get_text_config()
    longest = _size(text, "max_position_embeddings")
    # A rotary embedding of type dynamic depends on contexts only behind the longest one, which none exceeds.
    fix_longrope(module, text, longest)
    return LoadedModule(
        module.eval(),
        vocab_size=_size(text, "vocab_size"),
        max_position_embeddings=longest,
        hidden_size=_size(text, "hidden_size"),
        num_layers=_size(text, "num_hidden_layers"),
    )


def _has_own_output(module: Any, settings: Any) -> bool:
    """Return whether transformers has not tied the output layer to the embedding, though the config says so."""
    output, table = module.get_output_embeddings(), module.get_input_embeddings()
    is_tied = bool(getattr(settings, "tie_word_embeddings", False))
    return is_tied and output is not None and table is not None and output.weight is not table.weight


def is_tied_by_default(model_type: str) -> bool:
    """Return whether a type of config ties the output layer to the embedding if a file does not say."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING and bool(getattr(CONFIG_MAPPING[model_type], "tie_word_embeddings", False))


def _size(settings: Any, name: str) -> int:
    size = getattr(settings, name, None)
    if not isinstance(size, int) or size < 1:
        raise ModelError(f"The model's config has no {name!r}.")
    return size


def check_class(model_class: Any, settings: Any) -> None:
    """Raise UnservableError for a model that keeps other state than keys and values, or that paged attention cannot run."""
    if getattr(settings, "is_encoder_decoder", False) or getattr(settings, "add_cross_attention", False):
        raise UnservableError("it has cross attention")
    if getattr(model_class, "_is_stateful", False):
        raise UnservableError("its layers keep states beside keys and values")
    if not getattr(model_class, "_supports_attention_backend", False):
        raise UnservableError("its code does not call attention through transformers' AttentionInterface")


def _class_and_config(foreign: Foreign, path: Path, values: Mapping[str, Any]) -> tuple[Any, Any]:
    values = dict(values)
    if foreign.is_own_code:
        from transformers import AutoConfig
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        config_class = type(AutoConfig.from_pretrained(path, trust_remote_code=foreign.is_own_code, local_files_only=True))
        model_class = get_class_from_dynamic_module(values["auto_map"][CODE_CLASS], path, local_files_only=True)
        return model_class, config_class.from_dict(values)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    config_class = CONFIG_MAPPING[foreign.model_type]
    return MODEL_FOR_CAUSAL_LM_MAPPING[config_class], config_class.from_dict(values)


def _random(model_class: Any, settings: Any, seed: int, dtype: torch.dtype) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model_class._from_config(settings, dtype=dtype, attn_implementation=IMPLEMENTATION)  # noqa: SLF001 - AutoModel calls it


def _filled(model_class: Any, settings: Any, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Any:
    module, info = model_class.from_pretrained(
        None,
        config=settings,
        state_dict=dict(tensors),
        dtype=dtype,
        attn_implementation=IMPLEMENTATION,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    for name, found, asked in sorted(info["mismatched_keys"]):
        raise ModelError(f"Tensor {name} has shape {tuple(found)}, but the config asks for {tuple(asked)}. {DOWNLOAD_AGAIN}")
    if missing := sorted(info["missing_keys"]):
        raise ModelError(f"The model's files have no tensor {_named(missing)}. {DOWNLOAD_AGAIN}")
    if unread := sorted(info["unexpected_keys"]):
        raise ModelError(
            f"The model's files have tensors that {model_class.__name__} does not use: {_named(unread)}. {DOWNLOAD_AGAIN}"
        )
    return module


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(name[:100] for name in names[:_MAX_NAMED]) + more


@contextmanager
def _errors_of(architecture: str) -> Iterator[None]:
    """Convert any error of a model's code while it loads into a ModelError."""
    try:
        yield
    except (ModelError, UnservableError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(f"transformers cannot make {architecture[:80]}: {one_line(error)}.") from error
