"""LoRA files: reads an adapter's directory as PEFT writes it.

adapter_config.json gives the scale of each module; the names of the tensors in adapter_model.safetensors give the changed
modules; target_modules and target_parameters are not used. Modules have canonical names (model_facts/tensor_names.py): the
canonical modules in a fused module of the checkpoint share its A, and each of them gets its rows of B.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from tetrad.services.errors import ModelError, NotFound
from tetrad.worker_svc.checkpoint.bare_names import first_part
from tetrad.worker_svc.checkpoint.canonical import canonical_rows, stored_names
from tetrad.worker_svc.checkpoint.lora_experts import ExpertStack, ExpertStacks
from tetrad.worker_svc.checkpoint.lora_weights import LoraPair, LoraWeights
from tetrad.worker_svc.checkpoint.safetensors_file import SafetensorsFile
from tetrad.worker_svc.core.lora import LoraSite
from tetrad.worker_svc.model_facts.tensor_names import TensorNames

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_NEEDED = ("r", "lora_alpha")
_REFUSED: Mapping[str, str] = {
    "use_dora": "DoRA (use_dora)",
    "lora_bias": "biases of LoRA layers (lora_bias)",
    "use_qalora": "QALoRA (use_qalora)",
    "use_bdlora": "BD-LoRA (use_bdlora)",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
    "layer_replication": "replicated layers (layer_replication)",
    "trainable_token_indices": "trained tokens (trainable_token_indices)",
    "arrow_config": "Arrow routing (arrow_config)",
}
"""Options of PEFT that change results and are not supported -> their names in errors; an option with an empty value is off."""
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq")
"""Initialisations that change the weights of the base model."""
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Scales:
    """The scale of each module: alpha / r, or alpha / sqrt(r) for rslora; patterns give some modules other ranks and alphas."""

    rank: int
    alpha: float
    is_rs: bool
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    def of(self, module: str, rank: int) -> float:
        """Return the scale of a module; raise ModelError if the rank of its tensors is not that of the config."""
        expected = _matched(self.ranks, module, self.rank)
        if expected != rank:
            raise ModelError(f"Module {module} has rank {rank}, but {CONFIG_NAME} says {expected}.")
        return float(_matched(self.alphas, module, self.alpha)) / (math.sqrt(rank) if self.is_rs else rank)


def read_lora(directory: Path, sites: Mapping[str, LoraSite], names: TensorNames, *, max_rank: int) -> LoraWeights:
    """Return an adapter's changes, in the type of its files.

    Args:
        directory: a directory written by PEFT's save_pretrained.
        sites: the modules that adapters may change, by canonical name.
        names: the tensor names of the model's family.
        max_rank: largest allowed rank.

    Raises:
        NotFound: the directory contains no adapter.
        ModelError: the adapter cannot be used; the message gives the first reason.
    """
    try:
        directory = directory.expanduser()
    except RuntimeError:  # ~name of no user
        raise _missing(directory) from None
    config = _read_config(directory)
    scales = _scales_of(config)
    path = directory / WEIGHTS_NAME
    if not path.is_file():
        raise NotFound(f"{directory} has no {WEIGHTS_NAME}; adapters in other formats are not supported.")
    tensors = _Tensors(SafetensorsFile(path))
    _check_names(tensors.names, config)
    stacks = ExpertStacks(sites, names, tensors.shape)
    pairs: dict[str, LoraPair] = {}
    for name, site in sites.items():
        for module, a, b in chain(_own(tensors, names, name, site), _shared(tensors, stacks.of(name))):
            if len(a) > max_rank:
                raise ModelError(f"Module {module} has rank {len(a)}; the limit is {max_rank} (max_lora_rank).")
            pairs[name] = _pair(module, a, b, scales.of(module, len(a)), site)
    unused = {name for name in tensors.names if not name.endswith(".base_layer.weight")} - tensors.used
    if unused:
        shown = ", ".join(sorted(unused)[:_MAX_NAMED])
        more = f" and {len(unused) - _MAX_NAMED} more" if len(unused) > _MAX_NAMED else ""
        raise ModelError(f"The adapter changes modules that the model does not have or that cannot be adapted: {shown}{more}.")
    if not pairs:
        raise ModelError(f"{path} has no tensors of an adapter.")
    return LoraWeights(_digest_of(directory), pairs)


class _Tensors:
    """The tensors of an adapter's file.

    Attributes:
        names: names without PEFT's prefix -> names in the file.
        used: the names of tensors that have been read.
    """

    def __init__(self, file: SafetensorsFile) -> None:
        self._file = file
        self.names = {name.removeprefix(_PREFIX): name for name in file.names()}
        self.used: set[str] = set()

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None if there is no such tensor."""
        return tuple(self._file.get(self.names[name]).shape) if name in self.names else None

    def get(self, name: str) -> torch.Tensor:
        """Return a matrix of floats in the mapped file's memory; raise ModelError if the tensor is not such a matrix."""
        tensor = self._file.get(self.names[name])
        if tensor.dtype not in _FLOATS or tensor.dim() != 2:
            raise ModelError(
                f"Tensor {name} is of type {tensor.dtype} and shape {tuple(tensor.shape)}; a matrix of floats is needed."
            )
        self.used.add(name)
        return tensor


_Change = tuple[str, torch.Tensor, torch.Tensor]
"""The change of a module: its name, A and B."""


def _own(tensors: _Tensors, names: TensorNames, name: str, site: LoraSite) -> Iterator[_Change]:
    """Yield the change of a canonical module from separate tensors, or from those of a fused module."""
    for stored, module in stored_names(names, name):
        if stored is not None and stored.is_stacked:
            continue
        a_name, b_name = _tensor_names(module, site)
        if a_name not in tensors.names:  # the adapter was trained on a model that transformers loads without an output layer
            a_name, b_name = _tensor_names(module.removeprefix(first_part(names)), site)
        if a_name in tensors.names and b_name in tensors.names:
            a, b = tensors.get(a_name), tensors.get(b_name)
            yield module, a, b if stored is None else canonical_rows(b, b_name, stored)


def _shared(tensors: _Tensors, stack: ExpertStack | None) -> Iterator[_Change]:
    """Yield the change of an expert's module from the tensors of all experts."""
    if stack is not None:
        a, b = map(tensors.get, stack.tensors)
        yield stack.parameter, *stack.pair_of(a, b)


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / CONFIG_NAME
    try:
        config = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(directory) from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} is not a JSON object.")
    _check_config(config)
    return config


def _missing(directory: Path) -> NotFound:
    return NotFound(f"There is no adapter at {directory}: no {CONFIG_NAME}.")


def _check_config(config: Mapping[str, Any]) -> None:
    if config.get("peft_type", "LORA") != "LORA":
        raise ModelError(f"The adapter is of peft_type {str(config['peft_type'])[:40]!r}; only LORA is supported.")
    missing = [name for name in _NEEDED if config.get(name) is None]
    if config.get("target_modules") is None and not config.get("target_parameters"):
        missing.append("target_modules")
    if missing:
        raise ModelError(f"{CONFIG_NAME} lacks {', '.join(missing)}.")
    for name, text in _REFUSED.items():
        if config.get(name):
            raise ModelError(f"The adapter uses {text}, which is not supported.")
    if modules := config.get("modules_to_save"):
        raise ModelError(f"The adapter has whole modules (modules_to_save: {modules}), which is not supported.")
    if config.get("bias", "none") != "none":
        raise ModelError(f"The adapter has biases (bias: {config['bias']!r}), which is not supported; train with bias='none'.")
    initial = config.get("init_lora_weights", True)
    if isinstance(initial, str) and initial.startswith(_CHANGES_BASE):
        raise ModelError(
            f"The adapter was initialised with {initial!r}, which changes the base model; save it as a plain LoRA."
        )


def _scales_of(config: Mapping[str, Any]) -> _Scales:
    rank, alpha = config["r"], config["lora_alpha"]
    if not isinstance(rank, int) or rank < 1:
        raise ModelError(f"{CONFIG_NAME} has r {str(rank)[:40]!r}; it must be a whole number above 0.")
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ModelError(f"{CONFIG_NAME} has lora_alpha {str(alpha)[:40]!r}; it must be a number.")
    ranks, alphas = _patterns(config, "rank_pattern"), _patterns(config, "alpha_pattern")
    return _Scales(rank, alpha, bool(config.get("use_rslora")), ranks, alphas)


def _patterns(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the patterns of a key, with their values; raise ModelError unless these are numbers by regular expression."""
    patterns = config.get(key) or {}
    if not isinstance(patterns, dict) or not all(isinstance(value, int | float) for value in patterns.values()):
        raise ModelError(f"{CONFIG_NAME} has {key} {str(patterns)[:80]!r}; it must be numbers by pattern.")
    for pattern in patterns:
        try:
            re.compile(f"(?:{pattern})")
        except re.error as error:
            raise ModelError(
                f"{CONFIG_NAME} has {pattern[:80]!r} in {key}, which is no regular expression: {error}."
            ) from error
    return patterns


def _matched(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """Return the value of the first pattern that matches the module's name, or its end after a dot."""
    found = (value for pattern, value in patterns.items() if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", module))
    return next(found, default)


def _check_names(found: Mapping[str, str], config: Mapping[str, Any]) -> None:
    for name in found:
        if name.endswith((".lora_magnitude_vector", ".lora_magnitude_vector.weight")):
            raise ModelError("The adapter uses DoRA (use_dora), which is not supported.")
        if ".modules_to_save." in name or name.endswith(".bias"):
            raise ModelError(f"The adapter has tensor {name}: whole modules and biases are not supported.")
    if not found:
        raise ModelError(f"{WEIGHTS_NAME} has no tensors; target_modules {config.get('target_modules')!r} fits no module.")


def _tensor_names(module: str, site: LoraSite) -> tuple[str, str]:
    if site.is_table:
        return f"{module}.lora_embedding_A", f"{module}.lora_embedding_B"
    return f"{module}.lora_A.weight", f"{module}.lora_B.weight"


def _pair(module: str, a: torch.Tensor, b: torch.Tensor, scale: float, site: LoraSite) -> LoraPair:
    rank = len(a)
    if a.shape != (rank, site.inputs) or b.shape != (site.outputs, rank):
        raise ModelError(
            f"Module {module} has A {tuple(a.shape)} and B {tuple(b.shape)}, but the base model's is "
            f"[{site.inputs} inputs, {site.outputs} outputs]: the adapter is of another base model."
        )
    if a.dtype != b.dtype:
        a, b = a.float(), b.float()
    return LoraPair(_copied(a), _copied(b), scale)


def _copied(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.clone(memory_format=torch.contiguous_format)


def _digest_of(directory: Path) -> bytes:
    digest = hashlib.sha256()
    for part in _contents(directory):
        digest.update(part)
    return digest.digest()


def _contents(directory: Path) -> Iterator[bytes]:
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        with (directory / name).open("rb") as file:
            while part := file.read(1 << 20):
                yield part
