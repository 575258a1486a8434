"""Foreign models: architectures without a family for which transformers, or the model's files, contain modelling code.

The worker runs them through the transformers backend (models/transformers_backend). This module checks whether such code
exists, without running it. Never imports torch or transformers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.values import architecture_of

CODE_CLASS = "AutoModelForCausalLM"
"""Key in auto_map of a causal model's own code."""
_MAPPING = re.compile(r"^MODEL_FOR_CAUSAL_LM_MAPPING_NAMES\b.*?^\)", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r'\(\s*"([^"]+)",\s*"([^"]+)"\s*\)')
_WRAPPER = "ForConditionalGeneration"


@dataclass(frozen=True, slots=True)
class Foreign:
    """The origin of the code that runs a model.

    Attributes:
        architecture: the architecture's name in config.json.
        model_type: transformers' name of the config; empty for a model with its own code.
        is_own_code: the model's files contain the code.
        is_inside: the model is the text model of a larger model, and its config is that model's text_config.
    """

    architecture: str
    model_type: str
    is_own_code: bool = False
    is_inside: bool = False


def foreign_model(config: Mapping[str, Any], *, trusts_code: bool) -> Foreign:
    """Return the origin of the code for a model without a family; raise ModelError if there is none, or it must not run.

    Args:
        config: the values of config.json.
        trusts_code: whether code from a model's files may run.
    """
    architecture = architecture_of(config)
    foreign = _with_code(config, architecture)
    if foreign is None:
        raise ModelError(
            f"Architecture {architecture[:80]} is not supported: no family, no plug-in and no causal model of transformers has "
            "this name. docs/models.md lists the families and shows how a plug-in adds one."
        )
    if foreign.is_own_code and not trusts_code:
        raise ModelError(
            f"Architecture {architecture[:80]} is code that the model brings (auto_map in config.json); it runs only in a "
            "worker with --trust-remote-code. Read that code first."
        )
    if config.get("quantization_config") is not None:
        raise ModelError(f"{architecture[:80]} runs through transformers' code, which takes weights in floats alone.")
    return foreign


def no_description(config: Mapping[str, Any]) -> ModelError:
    """Return the error for a model without a family, where only models with a family can run."""
    try:
        foreign = foreign_model(config, trusts_code=True)
    except ModelError as error:
        return error
    return ModelError(
        f"{foreign.architecture[:80]} has no family: transformers' code runs it, and its tensors' names are not known here."
    )


def _with_code(config: Mapping[str, Any], architecture: str) -> Foreign | None:
    model_type = config.get("model_type")
    known = _causal_models()
    if (model_type, architecture) in known and not architecture.endswith(_WRAPPER):
        return Foreign(architecture, str(model_type))
    text_config = config.get("text_config")
    text_type = text_config.get("model_type") if isinstance(text_config, Mapping) else None
    if architecture.endswith(_WRAPPER) and any(text_type == known_type for known_type, _ in known):
        return Foreign(architecture, str(text_type), is_inside=True)
    own = config.get("auto_map")
    if isinstance(own, Mapping) and isinstance(own.get(CODE_CLASS), str):
        return Foreign(architecture, "", is_own_code=True)
    return None


@cache
def _causal_models() -> frozenset[tuple[str, str]]:
    """Return (model type, architecture) of transformers' causal models, read from its source text."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return frozenset()
    text = (Path(spec.origin).parent / "models/auto/modeling_auto.py").read_text()
    found = _MAPPING.search(text)
    return frozenset(_ENTRY.findall(found.group())) if found else frozenset()
