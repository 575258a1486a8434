"""Whisper loading: builds the encoder of a Whisper checkpoint with transformers' class, and reads the products of its output.

The decoder's other weights are read as those of any decoder (families/whisper.py).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tetrad.services.errors import ModelError, one_line
from tetrad.services.models.model_directory import read_model_json
from tetrad.worker_svc.checkpoint.model_config import apply_overrides, read_model_config
from tetrad.worker_svc.checkpoint.open import open_files
from tetrad.worker_svc.checkpoint.source import DOWNLOAD_AGAIN, WeightSource
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.media import Alignment
from tetrad.worker_svc.families.registry import ENCODER_DECODERS
from tetrad.worker_svc.families.values import architecture_of
from tetrad.worker_svc.media.whisper_tower import CrossWeights, WhisperTower
from tetrad.worker_svc.models.transformers_backend.quiet import quiet

_MAX_NAMED = 3


def has_encoder(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json's model has an encoder whose output its decoder attends to."""
    return architecture_of(config) in ENCODER_DECODERS


def load_whisper(request: LoadRequest) -> WhisperTower:
    """Return the encoder in float32, in host memory. Raises ModelError if its files are wrong, or if media are switched off."""
    if not request.takes_media:
        raise ModelError(
            "Whisper generates only from audio: it does not run with language_model_only, and cannot be a draft model."
        )
    config = apply_overrides(read_model_config(request.path), request.hf_overrides_json)
    try:
        with quiet():
            if request.random_weights:
                return _random(config, request)
            return _read(config, request)
    except (ModelError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(f"transformers cannot make the encoder of {architecture_of(config)}: {one_line(error)}.") from error


def _read(values: Mapping[str, Any], request: LoadRequest) -> WhisperTower:
    config, source = _config(values), open_files(request)[0]
    prefix = "" if source.has("decoder.embed_tokens.weight") else "model."  # as transformers writes WhisperModel
    with torch.device("meta"):
        encoder = _encoder(config)
    wanted, tensors = encoder.state_dict(), {}
    missing = [name for name in (f"{prefix}encoder.{name}" for name in wanted) if not source.has(name)]
    layers = [f"{prefix}decoder.layers.{index}.encoder_attn" for index in range(config.decoder_layers)]
    products = [[f"{layer}.{name}" for name in ("k_proj.weight", "v_proj.weight", "v_proj.bias")] for layer in layers]
    missing += [name for names in products for name in names if not source.has(name)]
    if missing:
        raise ModelError(f"The model's files have no tensor {', '.join(missing[:_MAX_NAMED])}. {DOWNLOAD_AGAIN}")
    for name, empty in wanted.items():
        tensors[name] = _load(source, f"{prefix}encoder.{name}", tuple(empty.shape))
    encoder.load_state_dict(tensors, assign=True)
    size = config.d_model
    shapes: tuple[tuple[int, ...], ...] = ((size, size), (size, size), (size,))
    weights = [
        CrossWeights(*(_load(source, name, shape) for name, shape in zip(names, shapes, strict=True))) for names in products
    ]
    return WhisperTower(_finished(encoder), weights, config.decoder_attention_heads, _alignment(config, request.path))


def _random(values: Mapping[str, Any], request: LoadRequest) -> WhisperTower:
    config = _config(values)
    size = config.d_model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(request.seed)
        encoder = _encoder(config)
        weights = [
            CrossWeights(_drawn(size, config.init_std), _drawn(size, config.init_std), torch.zeros(size))
            for _ in range(config.decoder_layers)
        ]
    return WhisperTower(_finished(encoder), weights, config.decoder_attention_heads, _alignment(config, request.path))


def _alignment(config: Any, path: Path) -> Alignment:
    """Return the heads that generation_config.json names; without any, all of the later half of layers, as openai/whisper."""
    layers, heads = config.decoder_layers, config.decoder_attention_heads
    found = [(layer, head) for layer in range(layers // 2, layers) for head in range(heads)]
    if named := (read_model_json(path, "generation_config.json") or {}).get("alignment_heads"):
        found = [(int(layer), int(head)) for layer, head in named]
    if wrong := next(((layer, head) for layer, head in found if not (0 <= layer < layers and 0 <= head < heads)), None):
        text = f"alignment_heads of generation_config.json has layer {wrong[0]} and head {wrong[1]}"
        raise ModelError(f"{text}; the decoder has {layers} layers of {heads} heads.")
    return Alignment(tuple(found), int(config.median_filter_width))


def _drawn(size: int, std: float) -> torch.Tensor:
    return torch.randn(size, size) * std


def _load(source: WeightSource, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    tensor = source.load(name)[0]
    if tuple(tensor.shape) != shape:
        raise ModelError(f"Tensor {name} has shape {tuple(tensor.shape)}, but the config asks for {shape}. {DOWNLOAD_AGAIN}")
    return tensor


def _config(values: Mapping[str, Any]) -> Any:
    from transformers import WhisperConfig

    return WhisperConfig.from_dict(dict(values) | {"quantization_config": None})


def _encoder(config: Any) -> Any:
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    return WhisperEncoder._from_config(config, dtype=torch.float32, attn_implementation="sdpa")  # noqa: SLF001 - AutoModel calls it


def _finished(encoder: Any) -> Any:
    return encoder.eval().requires_grad_(False)
