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
    if not config.tie_word_embeddings or not source.has(_OUTPUT):
        return config
    if source.load_quantized(_OUTPUT) is not None:
        log.warning(
            "output_layer.tied",
            architecture=config.architecture,
            reason="the config ties it to the embedding; the files have a quantized lm_head as well",
            consequence="the embedding is used; with tie_word_embeddings=false in config.json the lm_head is",
        )
        return config
    if _is_same(source):
        return config
    warn_not_tied(config.architecture)
    return replace(config, tie_word_embeddings=False)


def warn_not_tied(architecture: str) -> None:
    """Log that the files' output layer is used against the config."""
    log.warning(
        "output_layer.not_tied",
        architecture=architecture,
        reason="the config ties it to the embedding, but the files have another lm_head.weight",
        consequence="the files' one is used; tie_word_embeddings=false in config.json says so",
    )


def _is_same(source: WeightSource) -> bool:
    output, embedding = source.load_stored(_OUTPUT), source.load_stored(_EMBEDDING)
    return output.dtype == embedding.dtype and torch.equal(output, embedding)
