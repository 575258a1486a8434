"""Tower loading: builds the vision or audio model of a checkpoint, with its projector, with transformers' classes.

Weights come from this worker's readers of files. The text model is left with no layers and a vocabulary of one.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from tetrad.services.errors import ModelError, one_line
from tetrad.services.log import get_logger
from tetrad.services.models.model_directory import read_model_json
from tetrad.services.models.video_files import read_image_settings, read_video_settings
from tetrad.worker_svc.checkpoint.model_config import apply_overrides, read_model_config
from tetrad.worker_svc.checkpoint.open import open_files
from tetrad.worker_svc.checkpoint.source import DOWNLOAD_AGAIN, WeightSource
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.media import IMAGE, VIDEO, Modality, Tower
from tetrad.worker_svc.families.values import architecture_of
from tetrad.worker_svc.media.audio_reader import AUDIO_KINDS, AudioReader
from tetrad.worker_svc.media.tower import TransformersTower
from tetrad.worker_svc.media.tower_kinds import TOWER_KINDS
from tetrad.worker_svc.media.video_kinds import VIDEO_KINDS, VideoReader
from tetrad.worker_svc.media.vision_reader import VisionReader, normalization_of
from tetrad.worker_svc.models.transformers_backend.quiet import quiet

_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_PARTS = ("visual.", "vision_tower.", "vision_model.", "audio_tower.", "multi_modal_projector.", "connector.", "image_newline")
_TOWER = tuple(prefix + part for prefix in ("", "model.") for part in _PARTS)
"""Beginnings of the names of a tower's tensors, in files of older and newer releases of transformers."""
_TEXT = ("lm_head.", "model.language_model.", "model.text_model.", "language_model.", "model.image_newline_")
_UNUSED = (".position_ids", ".inv_freq")
"""Ends of the names of buffers that some files have, and that transformers computes."""
_MAX_NAMED = 3

log = get_logger()


def load_tower(
    request: LoadRequest,
    dtype: torch.dtype,
    device: torch.device,
    *,
    has_own_thread: bool,
    sees_ahead: bool = False,
    make: Callable[..., Tower] = TransformersTower,
) -> Tower | None:
    """Return the tower of a model; None if the model takes only text, or its files lack the image processor or the tower.

    Args:
        request: the model and its options.
        dtype, device: type and place of the weights.
        has_own_thread: see Tower.
        sees_ahead: whether the text model's attention follows StepInputs.ends on this device. Without it, a model whose image
            tokens attend to later ones takes only text.
        make: makes the tower, of the arguments of TransformersTower.

    Raises ModelError if the tower's files are wrong.
    """
    if not request.takes_media or not request.path.is_dir() or request.runner == "pooling":
        return None
    config = apply_overrides(read_model_config(request.path), request.hf_overrides_json)
    architecture = architecture_of(config)
    if architecture in AUDIO_KINDS:
        return _load_audio_tower(request, config, dtype, device, has_own_thread=has_own_thread, make=make)
    kind = TOWER_KINDS.get(architecture)
    if kind is None:
        return None
    if kind.is_whole and not sees_ahead:
        reason = "its image tokens attend to later ones, which this device does not support"
        log.warning("model.takes_only_text", architecture=architecture, reason=reason)
        return None
    if not any((request.path / name).is_file() for name in _PROCESSORS):
        log.warning("model.takes_only_text", architecture=architecture, reason=f"its files have no {_PROCESSORS[0]}")
        return None
    try:
        with quiet():
            kwargs = json.loads(request.processor_kwargs_json or "{}")
            processor = (
                _processor(request.path, str(config.get("model_type")), kwargs)
                if kind.defaults is None
                else SimpleNamespace(**{**kind.defaults, **read_image_settings(request.path), **kwargs})
            )
    except Exception as error:  # noqa: BLE001 - settings of a processor may be anything
        reason = f"its image processor cannot be made: {one_line(error)}"
        log.warning("model.takes_only_text", architecture=architecture, reason=reason)
        return None
    with _errors_of(architecture), quiet():
        tensors = None if request.random_weights else _tensors(open_files(request)[0])
        if tensors is not None and not tensors:
            log.warning("model.takes_only_text", architecture=architecture, reason="its files have no vision model")
            return None
        module = _module(architecture, config, tensors, request.seed, dtype)
        kind.prepare(module)
        largest = kind.largest(processor, module.config)
        modalities = [Modality(IMAGE, largest, kind.is_whole)]
        videos = _videos(request, architecture, processor, module.config)
        if videos is not None:
            modalities.append(Modality(VIDEO, videos.largest))
        reader = VisionReader(kind, module.config, processor, tuple(modalities), videos)
        return make(module.to(device), reader, has_own_thread=has_own_thread)


def _load_audio_tower(
    request: LoadRequest,
    config: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device,
    *,
    has_own_thread: bool,
    make: Callable[..., Tower],
) -> Tower | None:
    """Return the tower of a model that reads audio; see load_tower."""
    architecture = architecture_of(config)
    kind = AUDIO_KINDS[architecture]
    processor = read_model_json(request.path, "processor_config.json") or {}
    extractor = processor.get("feature_extractor") or read_model_json(request.path, "preprocessor_config.json")
    if not extractor:
        log.warning("model.takes_only_text", architecture=architecture, reason=f"its files have no {_PROCESSORS[0]}")
        return None
    with _errors_of(architecture), quiet():
        tensors = None if request.random_weights else _tensors(open_files(request)[0])
        if tensors is not None and not tensors:
            log.warning("model.takes_only_text", architecture=architecture, reason="its files have no audio model")
            return None
        module = _module(architecture, config, tensors, request.seed, dtype)
        kind.prepare(module)
        return make(module.to(device), AudioReader(kind, module.config, extractor, processor), has_own_thread=has_own_thread)


def count_parameters(config: Mapping[str, Any]) -> int:
    """Return the number of weights of the tower that a model has by its config.json; 0: it takes only text.

    Allocates no memory for them. Raises ModelError if the config is wrong.
    """
    architecture = architecture_of(config)
    if architecture not in TOWER_KINDS and architecture not in AUDIO_KINDS:
        return 0
    with _errors_of(architecture), quiet(), torch.device("meta"):
        return sum(each.numel() for each in _module(architecture, config, None, 0, torch.float32).parameters())


def _videos(request: LoadRequest, architecture: str, processor: Any, config: Any) -> VideoReader | None:
    """Return what reads the videos of a model; None: it reads none."""
    kind = VIDEO_KINDS.get(architecture)
    settings = read_video_settings(request.path)
    if kind is None or not settings:
        return None
    return VideoReader(kind, settings, normalization_of(processor, settings), config)


def _tensors(source: WeightSource) -> dict[str, torch.Tensor]:
    """Return the tower's tensors in float32, under the names of the files."""
    names = [name for name in source.unread() if name.startswith(_TOWER) and not name.endswith(_UNUSED)]
    if source.config.get("quantization_config") is not None:
        names = _unpacked(source, names)
    return {name: source.load(name)[0] for name in names}


def _unpacked(source: WeightSource, names: list[str]) -> list[str]:
    """Return the names under which a quantized checkpoint's tensors are read: without scales and other parts of matrices."""
    modules = {name.rpartition(".")[0] for name in names}
    matrices = {module for module in modules if source.has(f"{module}.weight")}
    others = [name for name in names if name.endswith(".bias") or name.rpartition(".")[0] not in matrices]
    return [*(f"{module}.weight" for module in matrices), *others]


def _processor(path: Path, model_type: str, kwargs: Mapping[str, Any]) -> Any:
    """Return the image processor, whose settings are read here, of a model's files; `kwargs` replace some of them."""
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    try:
        return transformers.AutoImageProcessor.from_pretrained(path, backend="pil", local_files_only=True, **kwargs)
    except ValueError:
        # A class that transformers had earlier, such as Qwen2_5_VLImageProcessor: the model's type names what replaced it.
        name = IMAGE_PROCESSOR_MAPPING_NAMES[model_type]["pil"]
        return getattr(transformers, str(name)).from_pretrained(path, local_files_only=True, **kwargs)


def _module(
    architecture: str, values: Mapping[str, Any], tensors: Mapping[str, torch.Tensor] | None, seed: int, dtype: torch.dtype
) -> Any:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_class = getattr(transformers, architecture)
    config = CONFIG_MAPPING[values["model_type"]].from_dict(dict(values))
    _leave_out_text(config)
    if tensors is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = model_class._from_config(config, dtype=dtype, attn_implementation="sdpa")  # noqa: SLF001 - AutoModel calls it
    else:
        module = _filled(model_class, config, tensors, dtype)
    # Llama 4 has its parts in the whole model.
    return getattr(module.eval().requires_grad_(False), "model", module)


def _leave_out_text(config: Any) -> None:
    text = config.get_text_config()
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = 0, 1, None
    if getattr(text, "layer_types", None):
        text.layer_types = []
    config.quantization_config = None


def _filled(model_class: Any, config: Any, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Any:
    module, info = model_class.from_pretrained(
        None,
        config=config,
        state_dict=dict(tensors),
        dtype=dtype,
        attn_implementation="sdpa",
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    for name, found, asked in sorted(info["mismatched_keys"]):
        raise ModelError(f"Tensor {name} has shape {tuple(found)}, but the config asks for {tuple(asked)}. {DOWNLOAD_AGAIN}")
    missing = sorted(name for name in info["missing_keys"] if not name.startswith(_TEXT))
    if missing:
        raise ModelError(f"The model's files have no tensor {', '.join(missing[:_MAX_NAMED])}. {DOWNLOAD_AGAIN}")
    return module


@contextmanager
def _errors_of(architecture: str) -> Iterator[None]:
    """Convert any error of transformers while the tower loads into a ModelError."""
    try:
        yield
    except (ModelError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(f"transformers cannot make the tower of {architecture[:80]}: {one_line(error)}.") from error
