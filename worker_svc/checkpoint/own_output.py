"""Own output layer: finds the output layer of a model whose config ties it to the embedding, while its files have another one.

As in transformers, the files decide: some programs that train untie the two and leave the config as it was, and the configs of
some models that read images tie them by default.
"""

from dataclasses import replace

import torch

from tetrad.services.log import get_logger
from tetrad.worker_svc.checkpoint.source import WeightSource
from tetrad.worker_svc.model_facts.config import ModelConfig

log = get_logger()
_OUTPUT, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def with_own_output(config: ModelConfig, source: WeightSource) -> ModelConfig:
    """Return a model's description, with tied embeddings only if the files have no output layer, or the same values twice.

    Args:
        config: the description by the config alone.
        source: the files, under canonical names.
    """
    if not config.tie_word_embeddings or not source.has(_OUTPUT) or _is_packed(source) or _is_same(source):
        return config
    log.warning(
        "output_layer.not_tied",
        architecture=config.architecture,
        reason="the config ties it to the embedding, but the files have another lm_head.weight",
        consequence="the files' one is used; tie_word_embeddings=false in config.json says so",
    )
    return replace(config, tie_word_embeddings=False)


def _is_packed(source: WeightSource) -> bool:
    """Return whether the output layer is quantized; it then rounds the embedding, which is better itself."""
    return source.load_quantized(_OUTPUT) is not None


def _is_same(source: WeightSource) -> bool:
    output, embedding = source.load_stored(_OUTPUT), source.load_stored(_EMBEDDING)
    return output.dtype == embedding.dtype and torch.equal(output, embedding)
