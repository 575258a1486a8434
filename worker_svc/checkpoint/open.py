"""Opens a WeightSource: the files of a model, or random weights of its shapes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.bare_names import with_prefix
from tetrad.worker_svc.checkpoint.canonical import CanonicalSource
from tetrad.worker_svc.checkpoint.gguf_architectures import tensor_names
from tetrad.worker_svc.checkpoint.model_config import apply_overrides, read_model_config
from tetrad.worker_svc.checkpoint.packed_weights.formats import open_reader
from tetrad.worker_svc.checkpoint.random import RandomSource
from tetrad.worker_svc.checkpoint.renamed import RenamedSource
from tetrad.worker_svc.checkpoint.source import WeightSource
from tetrad.worker_svc.checkpoint.split_latents import SplitLatentSource
from tetrad.worker_svc.checkpoint.text_part import TextPartSource
from tetrad.worker_svc.checkpoint.unpacked import UnpackedSource
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.host import available_memory_bytes
from tetrad.worker_svc.families.registry import supported_config
from tetrad.worker_svc.families.values import Values

_HOST = torch.device("cpu")


def open_weights(request: LoadRequest, device: torch.device = _HOST) -> WeightSource:
    """Return the source; raise ModelError if it cannot be read, or if random weights would not fit into host memory.

    Args:
        request: the model and its options.
        device: device on which random weights are drawn.
    """
    if not request.random_weights:
        if request.path.suffix == ".gguf":
            return open_source(request.path)
        source, config = open_files(request)
        names = supported_config(config).tensors
        inner = TextPartSource(source, names.text_parts) if names.text_parts else with_prefix(source, names)
        return CanonicalSource(RenamedSource(inner, names.moved) if names.moved else inner, names)
    config = apply_overrides(read_model_config(request.path), request.hf_overrides_json)
    source = RandomSource(config, supported_config(config), request.seed, device)
    available = available_memory_bytes()
    if device.type == _HOST.type and source.total_bytes > available:
        raise ModelError(f"Random weights of this config take {source.total_bytes} bytes, but {available} are available.")
    return source


def open_files(request: LoadRequest) -> tuple[WeightSource, Mapping[str, Any]]:
    """Return the tensors of a model's directory under its files' names, quantized matrices unpacked, and its config with
    overrides; raise ModelError if they cannot be read.
    """
    source = open_source(request.path)
    config = apply_overrides(source.config, request.hf_overrides_json)
    quantization = config.get("quantization_config")
    return source if quantization is None else UnpackedSource(source, open_reader(quantization)), config


def open_source(path: Path) -> WeightSource:
    """Return the source for a directory with config.json and weights, under its files' names, or for a .gguf file, under
    canonical names; raises ModelError if it is neither.
    """
    # Each of the two libraries takes a large part of a second to import, so only the needed one is imported.
    if path.suffix == ".gguf":
        from tetrad.worker_svc.checkpoint.gguf_file import GgufSource

        source = GgufSource(path)
        config = supported_config(source.config)
        names = tensor_names(source.architecture, config, Values(source.config).num_mtp_layers(), source.has)
        return CanonicalSource(SplitLatentSource(source, config.num_heads) if config.latent else source, names)
    if path.is_dir():
        from tetrad.worker_svc.checkpoint.directory import DirectorySource

        return DirectorySource(path)
    raise ModelError(f"{path} is neither a directory with config.json nor a .gguf file.")
