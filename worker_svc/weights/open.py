"""Opens the weights that a load request means: a model's files, or made-up ones of its shape."""

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.devices.host import available_memory_bytes
from tetrad.worker_svc.devices.interface import LoadRequest
from tetrad.worker_svc.models.check import supported_config
from tetrad.worker_svc.weights.model_config import apply_overrides, read_model_config
from tetrad.worker_svc.weights.random import RandomSource
from tetrad.worker_svc.weights.source import WeightSource, open_source
from tetrad.worker_svc.weights.split_projections import SplitProjections

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
