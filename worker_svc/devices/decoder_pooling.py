"""Decoder pooling: builds, from a model's files, the pooler that turns hidden states into embeddings, classes or rewards."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tetrad.services.errors import ModelError
from tetrad.services.models.model_directory import read_model_json
from tetrad.worker_svc.checkpoint.placed import FloatWeights
from tetrad.worker_svc.checkpoint.pooler_config import PoolerConfig, PoolingType, read_pooler_config
from tetrad.worker_svc.checkpoint.pooler_overrides import override_pooler
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.pooling import Task
from tetrad.worker_svc.devices.poolers import Classifier, Pooling, class_pooling, embedding_pooling
from tetrad.worker_svc.families.pooling import PoolingUse, labels_of
from tetrad.worker_svc.layers.linear import PlainLinear
from tetrad.worker_svc.layers.pooling_heads import Layer
from tetrad.worker_svc.model_facts.config import ModelConfig

_PROCESS_TAG = 151651
"""Id of the token after each step that Qwen's process reward models rate (vLLM's default)."""
_NAMED_POOLING: Mapping[str, PoolingType] = {"last": "LAST", "avg": "MEAN", "mean": "MEAN", "cls": "CLS"}
"""Pooling types by the value of "pooling" in configs of bidirectional decoders."""
_FROM_TWO = "from_2_way_softmax"
TASKS_OF_CLASSIFIERS: Mapping[str, tuple[Task, ...]] = {
    "classify": ("classify", "token_classify"),
    "token_classify": ("token_classify",),
    "reward": ("token_classify",),
    "process_reward": ("token_classify",),
}


def pooler_config_of(request: LoadRequest, config: Mapping[str, Any], use: PoolingUse) -> PoolerConfig:
    """Return a decoder's pooler configuration: that of its files, with the overrides of the request."""
    named = str(config.get("pooling", "last"))
    if named not in _NAMED_POOLING:
        raise ModelError(f"config.json: pooling {named[:80]!r} is not supported; supported: {', '.join(_NAMED_POOLING)}.")
    pools = read_pooler_config(request.path, config, _NAMED_POOLING[named])
    if use.kind == "reward":
        pools = replace(pools, use_activation=False)
    if use.kind == "process_reward":
        pools = replace(pools, has_steps=True, step_tag_id=_PROCESS_TAG)
    return override_pooler(pools, request.pooler_config_json)


def decoder_pooling(
    request: LoadRequest,
    config: Mapping[str, Any],
    facts: ModelConfig,
    use: PoolingUse,
    pools: PoolerConfig,
    weights: FloatWeights,
    *,
    is_causal: bool = True,
) -> Pooling:
    """Return a decoder's pooler.

    Args:
        request: the model and its options.
        config: the values of config.json.
        facts: the decoder's description.
        use: the purpose of the pooling.
        pools: the pooler configuration.
        weights: the tensors of the files, on the device of the hidden states.
        is_causal: see PoolingFacts.
    """
    if use.kind == "embed":
        size, generates = facts.hidden_size, use.generates
        return embedding_pooling(pools, size, is_causal=is_causal, generates=generates, device=weights.device)
    if config.get("classifier_from_token"):
        layers, labels = _from_tokens(request.path, config, facts, weights)
    elif use.kind in ("reward", "process_reward"):
        labels = tuple(f"LABEL_{index}" for index in range(2 if use.kind == "process_reward" else 1))
        size = facts.hidden_size
        layers = [_linear(weights, "score.0", size, size), torch.relu, _linear(weights, "score.2", len(labels), size)]
    else:
        labels = labels_of(config)
        # Classifiers of tokens of transformers' older models call it classifier: GPT-2, GPT-Neo, GPT-NeoX, Falcon.
        head = "classifier" if weights.has("classifier.weight") else "score"
        layers = [_linear(weights, head, len(labels), facts.hidden_size)]
    classifier = Classifier.of(config, layers, labels, TASKS_OF_CLASSIFIERS[use.kind])
    return class_pooling(pools, classifier, is_causal=is_causal, generates=use.generates)


def _linear(weights: FloatWeights, name: str, num_outputs: int, num_inputs: int) -> Layer:
    bias = weights.get(f"{name}.bias", (num_outputs,)) if weights.has(f"{name}.bias") else None
    return PlainLinear(weights.get(f"{name}.weight", (num_outputs, num_inputs)), bias)


def _from_tokens(
    path: Path, config: Mapping[str, Any], facts: ModelConfig, weights: FloatWeights
) -> tuple[list[Layer], tuple[str, ...]]:
    """Return a classifier made of some tokens' rows of the output layer, like vLLM's classifier_from_token."""
    tokens = config["classifier_from_token"]
    if not isinstance(tokens, list) or not tokens or not all(isinstance(each, str) for each in tokens):
        raise ModelError(f"config.json: classifier_from_token must be a list of tokens, got {str(tokens)[:80]!r}.")
    method = str(config.get("method") or (_FROM_TWO if config.get("is_original_qwen3_reranker") else "no_post_processing"))
    if method not in (_FROM_TWO, "no_post_processing") or (method == _FROM_TWO and len(tokens) != len(("false", "true"))):
        raise ModelError(f"config.json: classifier_from_token of {len(tokens)} tokens with method {method[:80]!r} is unknown.")
    ids = _token_ids(path, tokens)
    name = "lm_head.weight" if weights.has("lm_head.weight") else "model.embed_tokens.weight"
    # If these rows are also the decoder's embedding, its loading has counted their parameters.
    matrix = weights.get_stored(name, (facts.vocab_size, facts.hidden_size), num_parameters=0)
    rows = matrix[ids].float().to(weights.device)
    if method == _FROM_TWO:
        return [PlainLinear(rows[1:] - rows[:1], None)], ("LABEL_0",)
    return [PlainLinear(rows, None)], tuple(tokens)


def _token_ids(path: Path, tokens: list[str]) -> list[int]:
    tokenizer = read_model_json(path, "tokenizer.json") if path.is_dir() else None
    if tokenizer is None:
        raise ModelError("classifier_from_token needs a tokenizer.json beside the weights.")
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    if isinstance(vocabulary, list):  # a unigram model's list of [token, score], in the order of ids
        vocabulary = {entry[0]: index for index, entry in enumerate(vocabulary)}
    known = vocabulary | {each["content"]: each["id"] for each in tokenizer.get("added_tokens", ())}
    missing = [token for token in tokens if token not in known]
    if missing:
        raise ModelError(f"classifier_from_token: the tokenizer has no token {missing[0][:80]!r}.")
    return [known[token] for token in tokens]
