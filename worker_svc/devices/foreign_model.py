"""Foreign model: loads a model of no described family, with transformers' modelling code, for the cpu device."""

from collections.abc import Mapping
from typing import Any

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
from tetrad.worker_svc.models.transformers_backend.build import build

_FLOAT32_BYTES = 4

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
    refuse_loras(request, "models that run through transformers")
    source = None if request.random_weights else open_source(request.path)
    tensors = None if source is None else _tensors(foreign, source)
    model, loaded = build(foreign, request.path, _own_config(foreign, config), tensors, seed=request.seed)
    pooling = _pooling(request, config, loaded.hidden_size)
    num_parameters = sum(each.numel() for each in loaded.module.parameters())
    size_bytes = num_parameters * _FLOAT32_BYTES
    report(size_bytes, size_bytes)
    code = "the model's own" if foreign.is_own_code else "transformers"
    log.info("model.runs_on_transformers", architecture=foreign.architecture, code=code, consequence="slower than a family")
    info = ModelInfo(
        model=request.model,
        architecture=foreign.architecture,
        vocab_size=loaded.vocab_size,
        max_position_embeddings=loaded.max_position_embeddings,
        dtype="float32",
        num_parameters=num_parameters,
        weights_size_bytes=size_bytes,
        num_layers=loaded.num_layers,
        hidden_size=loaded.hidden_size,
        weights_dtype="float32" if source is None else source.stored_type,
        pooling=None if pooling is None else pooling.facts,
    )
    return HostModel(model.kv_cache_spec, size_bytes, runner_of(model, pooling)), info


def _pooling(request: LoadRequest, config: Mapping[str, Any], hidden_size: int) -> Pooling | None:
    use = find_use(request, config)
    if use is None:
        return None
    if use.kind != "embed":
        raise ModelError("A model that runs with transformers' code embeds and does not classify.")
    return embedding_pooling(pooler_config_of(request, config, use), hidden_size, is_causal=True, generates=use.generates)


def _own_config(foreign: Foreign, config: Mapping[str, Any]) -> Mapping[str, Any]:
    if not foreign.is_inside:
        return config
    # The whole model's config says whether the output layer is tied to the embedding.
    tied = {key: config[key] for key in ("tie_word_embeddings",) if key in config}
    return {**config["text_config"], **tied}


def _tensors(foreign: Foreign, source: WeightSource) -> dict[str, torch.Tensor]:
    """Return the tensors of the files under transformers' names."""
    if foreign.is_inside:
        text_part = TextPartSource(source, TEXT_PARTS)
        return {name: text_part.load_stored(name) for name in text_part.names()}
    return {name: source.load_stored(name) for name in source.unread()}
