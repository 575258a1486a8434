"""Model description: reads config, family and parameters from a model's files, and checks whether this machine can run it.

It reads headers, never weights.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tetrad.services.errors import ModelError, TetradError
from tetrad.services.models.gguf_container import read_gguf_header
from tetrad.services.models.gguf_parts import gguf_part_paths
from tetrad.services.models.model_directory import list_model_files
from tetrad.worker_svc.checkpoint.model_config import read_model_config
from tetrad.worker_svc.core.host import available_memory, size_on_disk, size_text
from tetrad.worker_svc.families.check import check_model, may_have_gpu
from tetrad.worker_svc.families.towers import media_read_by
from tetrad.worker_svc.families.values import architecture_of

_HEADER_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100 << 20  # the format's own limit


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The facts of a model.

    Attributes:
        config: the config, in the form of config.json.
        num_parameters: number of parameters; None if unknown: the weights are packed or not downloaded.
        weights_bytes: size of the weights in the files.
    """

    config: Mapping[str, Any]
    num_parameters: int | None
    weights_bytes: int

    @property
    def family(self) -> str:
        """The name of the architecture without its task, such as "Llama"."""
        try:
            return architecture_of(self.config).removesuffix("ForCausalLM").removesuffix("LMHeadModel")
        except ModelError:
            return str(self.config.get("model_type", "unknown"))

    @property
    def input_modalities(self) -> list[str]:
        """The media of its prompts, if its files have the processors: "text", "image"."""
        try:
            return ["text", *media_read_by(architecture_of(self.config))]
        except ModelError:
            return ["text"]


def describe_files(path: Path) -> ModelDescription:
    """Return the description of a directory or .gguf file; ModelError if it cannot be read."""
    config = read_model_config(path)
    if path.suffix == ".gguf":
        tensors = [tensor for part in gguf_part_paths(path) for tensor in read_gguf_header(part).tensors]
        return ModelDescription(config, sum(math.prod(tensor.shape) for tensor in tensors), size_on_disk(path))
    files = list_model_files(path, "*.safetensors", is_weights=True)
    counted = sum(map(_count_parameters, files)) if files and not config.get("quantization_config") else None
    return ModelDescription(config, counted, size_on_disk(path))


def why_not_here(model: ModelDescription, device: str) -> str:
    """Return in one line why a device of this machine cannot run a model; empty if no reason is known.

    Args:
        model: the facts of the model.
        device: "auto", "cpu" or "cuda".
    """
    try:
        check_model(model.config, device)
    except TetradError as error:
        return error.message
    free = available_memory()
    on_host = device == "cpu" or (device == "auto" and not may_have_gpu())
    if on_host and model.weights_bytes > free.size_bytes:
        needed, left = size_text(model.weights_bytes), size_text(free.size_bytes)
        return f"Its weights take {needed}, but {left} are left by {free.limited_by}."
    return ""


def _count_parameters(path: Path) -> int:
    """Return the number of values in a safetensors file, read from its header."""
    try:
        with path.open("rb") as file:
            (length,) = _HEADER_LENGTH.unpack(file.read(_HEADER_LENGTH.size))
            if length > _MAX_HEADER_BYTES:
                raise ModelError(f"{path} is not a safetensors file: its header would have {length} bytes.")
            header = json.loads(file.read(length))
        return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ModelError(f"{path} is not a safetensors file: {error}.") from error
