"""Opens weights: the files of a model, or made-up weights of its shape."""

from pathlib import Path

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.model_config import apply_overrides, read_model_config
from tetrad.worker_svc.checkpoint.random import RandomSource
from tetrad.worker_svc.checkpoint.source import WeightSource
from tetrad.worker_svc.checkpoint.split_projections import SplitProjections
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.host import available_memory_bytes
from tetrad.worker_svc.model_facts.check import supported_config

_HOST = torch.device("cpu")


def open_weights(request: LoadRequest, device: torch.device = _HOST) -> WeightSource:
    """Return the source; ModelError if it cannot be read, or if made-up weights would not fit the host's memory.

    Args:
        request: which model.
        device: where made-up weights are drawn.
    """
    if not request.random_weights:
        source = open_source(request.path)
        if not source.has("model.layers.0.self_attn.qkv_proj.weight"):
            return source
        return SplitProjections(source, supported_config(apply_overrides(source.config, request.hf_overrides_json)))
    config = apply_overrides(read_model_config(request.path), request.hf_overrides_json)
    source = RandomSource(config, supported_config(config), request.seed, device)
    available = available_memory_bytes()
    if device.type == _HOST.type and source.total_bytes > available:
        raise ModelError(f"Random weights of this config take {source.total_bytes} bytes, but {available} are available.")
    return source


def open_source(path: Path) -> WeightSource:
    """Return the source for a directory (config.json and *.safetensors) or a .gguf file; ModelError if it is neither."""
    # Either library takes a good part of a second to import: only the one that is needed.
    if path.suffix == ".gguf":
        from tetrad.worker_svc.checkpoint.gguf_file import GgufSource

        return GgufSource(path)
    if path.is_dir():
        from tetrad.worker_svc.checkpoint.safetensors_dir import SafetensorsSource

        return SafetensorsSource(path)
    raise ModelError(f"{path} is neither a directory with config.json nor a .gguf file.")
