"""Model check: whether a device can run a model, as far as its config.json says. Never imports torch.

Called by the devices when they load a model, and before a model's weights are downloaded: both refuse the same with the same
line.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.model_facts.config import ModelConfig, architecture_of, read_config
from tetrad.worker_svc.model_facts.quantization import check_in_floats

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
"""Those that registry.py has a model for."""


def check_config(config: Mapping[str, Any], device: str) -> ModelConfig:
    """Return the facts of a model; ModelError if the device cannot run it.

    Args:
        config: of config.json.
        device: "cpu", "cuda" or "sim", which needs no weights; or "auto": refused is what neither of the first two runs.
    """
    if device == "sim":
        return read_config(config)
    if device == "cpu" or (device == "auto" and not may_have_gpu()):
        check_in_floats(config.get("quantization_config"))
    return supported_config(config)


def supported_config(config: Mapping[str, Any]) -> ModelConfig:
    """Return the facts of a model that can be run; ModelError names an architecture that cannot, and those that can."""
    architecture = architecture_of(config)
    if architecture not in ARCHITECTURES:
        raise ModelError(f"Architecture {architecture[:80]} is not supported; supported: {', '.join(ARCHITECTURES)}.")
    return read_config(config)


def may_have_gpu() -> bool:
    """Return whether the machine shows a device of NVIDIA's driver; only torch knows whether it can be used."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()
