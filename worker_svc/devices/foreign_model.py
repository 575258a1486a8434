"""Foreign model: loads a model of no described family, with transformers' modelling code."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from tetrad.services.errors import ModelError
from tetrad.services.log import get_logger
from tetrad.worker_svc.checkpoint.open import open_source
from tetrad.worker_svc.checkpoint.pooling_use import find_use
from tetrad.worker_svc.checkpoint.source import WeightSource
from tetrad.worker_svc.checkpoint.text_part import TextPartSource
from tetrad.worker_svc.core.device import LoadRequest, ModelInfo, Progress, refuse_loras
from tetrad.worker_svc.devices.cpu_models import HostModel, runner_of
from tetrad.worker_svc.devices.decoder_pooling import pooler_config_of
from tetrad.worker_svc.devices.poolers import Pooling, embedding_pooling
from tetrad.worker_svc.families.foreign import Foreign
from tetrad.worker_svc.model_facts.tensor_names import TEXT_PARTS
from tetrad.worker_svc.models.transformers_backend.build import build, build_module
from tetrad.worker_svc.models.transformers_backend.loading import LoadedModule, is_tied_by_default
from tetrad.worker_svc.models.transformers_backend.probe import LayerCall

_HOST = torch.device("cpu")

log = get_logger()


def load_foreign(
    request: LoadRequest, foreign: Foreign, config: Mapping[str, Any], report: Progress
) -> tuple[HostModel, ModelInfo]:
    """Return a model with its weights in float32; raise ModelError if its files are wrong or it cannot be served.

    Args:
        request: the model and its options.
        foreign: the transformers code that runs the model.
        config: the values of config.json, with overrides.
        report: called once, when the weights are loaded.
    """
    files = _Files(request, foreign, config)
    model, loaded = build(foreign, request.path, files.config, files.tensors, seed=request.seed)
    pooling = _pooling(request, config, loaded.hidden_size)
    info = _info(request, foreign, loaded, pooling, files.stored_type)
    report(info.weights_size_bytes, info.weights_size_bytes)
    return HostModel(model.kv_cache_spec, info.weights_size_bytes, runner_of(request, model, pooling)), info


class ForeignModule(NamedTuple):
    """A module in host memory for another device, its attention, and its facts.

    `pooling` is on that device; None if the model only generates.
    """

    loaded: LoadedModule
    layers: list[LayerCall]
    pooling: Pooling | None
    info: ModelInfo


def load_foreign_module(
    request: LoadRequest,
    foreign: Foreign,
    config: Mapping[str, Any],
    report: Progress,
    dtype: torch.dtype,
    device: torch.device,
) -> ForeignModule:
    """Return a model with weights of type `dtype`, for a device. Other arguments and errors: see `load_foreign`."""
    files = _Files(request, foreign, config)
    loaded, layers = build_module(foreign, request.path, files.config, files.tensors, seed=request.seed, dtype=dtype)
    pooling = _pooling(request, config, loaded.hidden_size, device)
    info = _info(request, foreign, loaded, pooling, files.stored_type)
    report(info.weights_size_bytes, info.weights_size_bytes)
    return ForeignModule(loaded, layers, pooling, info)


class _Files:
    """The files of a model: the module's config, its tensors under transformers' names, and the type of most tensors.

    `tensors` is None for random weights.
    """

    def __init__(self, request: LoadRequest, foreign: Foreign, config: Mapping[str, Any]) -> None:
        refuse_loras(request, "models that run through transformers")
        source = None if request.random_weights else open_source(request.path)
        self.config = _own_config(foreign, config)
        self.tensors = None if source is None else _tensors(foreign, source)
        self.stored_type = "float32" if source is None else source.stored_type


def _info(request: LoadRequest, foreign: Foreign, loaded: LoadedModule, pooling: Pooling | None, stored_type: str) -> ModelInfo:
    code = "the model's own" if foreign.is_own_code else "transformers"
    log.info("model.runs_on_transformers", architecture=foreign.architecture, code=code, consequence="slower than a family")
    parameters = list(loaded.module.parameters())
    return ModelInfo(
        model=request.model,
        architecture=foreign.architecture,
        vocab_size=loaded.vocab_size,
        max_position_embeddings=loaded.max_position_embeddings,
        dtype=str(parameters[0].dtype).removeprefix("torch."),
        num_parameters=sum(each.numel() for each in parameters),
        weights_size_bytes=sum(each.nbytes for each in parameters),
        num_layers=loaded.num_layers,
        hidden_size=loaded.hidden_size,
        weights_dtype=stored_type,
        pooling=None if pooling is None else pooling.facts,
    )


def _pooling(request: LoadRequest, config: Mapping[str, Any], hidden_size: int, device: torch.device = _HOST) -> Pooling | None:
    use = find_use(request, config)
    if use is None:
        return None
    if use.kind != "embed":
        raise ModelError("A model that runs with transformers' code embeds and does not classify.")
    pools = pooler_config_of(request, config, use)
    return embedding_pooling(pools, hidden_size, is_causal=True, generates=use.generates, device=device)


def _own_config(foreign: Foreign, config: Mapping[str, Any]) -> Mapping[str, Any]:
    if not foreign.is_inside:
        return config
    # As in Values.inside. Where the values differ, the tensors decide.
    key, text_config = "tie_word_embeddings", config["text_config"]
    inside = text_config.get(key)
    tied = config.get(key, inside is None and is_tied_by_default(str(config.get("model_type")))) or inside
    return {**text_config, key: bool(tied)}


def _tensors(foreign: Foreign, source: WeightSource) -> dict[str, torch.Tensor]:
    """Return the tensors of the files under transformers' names."""
    if foreign.is_inside:
        text_part = TextPartSource(source, TEXT_PARTS)
        return {name: text_part.load_stored(name) for name in text_part.names()}
    return {name: source.load_stored(name) for name in source.unread()}
