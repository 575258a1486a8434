"""Poolers: builds a model's pooler and its facts, for embeddings and for classes. Called while a model is loaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file

from tetrad.services.errors import ModelError, one_line
from tetrad.services.models.model_directory import find_model_file
from tetrad.worker_svc.checkpoint.pooler_config import Activation, DenseModule, PoolerConfig, classifier_activation
from tetrad.worker_svc.core.pooling import PoolingFacts, PoolingSpec, Task
from tetrad.worker_svc.layers.linear import PlainLinear
from tetrad.worker_svc.layers.pooler import Head, Pooler
from tetrad.worker_svc.layers.pooling_heads import ACTIVATIONS, ClassifierHead, DenseLayer, EmbeddingHead, Layer

_HOST = torch.device("cpu")
_DENSE_NAMES = ("", "linear.", "dense.")


@dataclass(frozen=True, slots=True)
class Pooling:
    """A model's pooler, and the facts about its tasks."""

    pooler: Pooler
    facts: PoolingFacts


@dataclass(frozen=True, slots=True)
class Classifier:
    """The classifier of a model.

    Attributes:
        layers: the layers from a hidden state to the logits, in order.
        labels: names of the classes.
        tasks: the supported tasks, the default first.
        activation: turns logits into probabilities.
    """

    layers: Sequence[Layer]
    labels: tuple[str, ...]
    tasks: tuple[Task, ...]
    activation: Activation

    @classmethod
    def of(
        cls, config: Mapping[str, Any], layers: Sequence[Layer], labels: tuple[str, ...], tasks: tuple[Task, ...]
    ) -> "Classifier":
        """Return a classifier with the activation of config.json."""
        return cls(layers, labels, tasks, classifier_activation(config, len(labels)))


def embedding_pooling(
    config: PoolerConfig,
    hidden_size: int,
    *,
    is_causal: bool,
    generates: bool = False,
    tasks: tuple[Task, ...] = ("embed", "token_embed"),
    projection: Sequence[Layer] = (),
    device: torch.device = _HOST,
) -> Pooling:
    """Return the pooling that embeds prompts and tokens.

    Args:
        config: the pooler configuration.
        hidden_size: size of the model's hidden states.
        is_causal: see PoolingFacts.
        generates: see PoolingFacts.
        tasks: the supported tasks, the default first.
        projection: the model's own layers, applied before those of `config`; the last one has `hidden_size` outputs.
        device: device of the hidden states.
    """
    dense: list[Layer] = [*projection, *(dense_layer(module, device) for module in config.dense)]
    size = config.dense[-1].out_features if config.dense else hidden_size
    embed = EmbeddingHead(dense, normalizes=config.embeds_normalized)
    heads: dict[Task, Head] = dict.fromkeys(tasks, embed)
    return _pooling(config, heads, is_causal=is_causal, generates=generates, embedding_size=size)


def class_pooling(config: PoolerConfig, classifier: Classifier, *, is_causal: bool, generates: bool = False) -> Pooling:
    """Return the pooling that classifies prompts, or tokens. Arguments: see embedding_pooling."""
    head = ClassifierHead(
        classifier.layers,
        classifier.activation,
        mean=config.logit_mean,
        sigma=config.logit_sigma,
        applies=config.use_activation is not False,
    )
    heads: dict[Task, Head] = dict.fromkeys(classifier.tasks, head)
    return _pooling(config, heads, is_causal=is_causal, generates=generates, labels=classifier.labels)


def _pooling(
    config: PoolerConfig,
    heads: Mapping[Task, Head],
    *,
    is_causal: bool,
    generates: bool,
    embedding_size: int = 0,
    labels: tuple[str, ...] = (),
) -> Pooling:
    facts = PoolingFacts(
        tasks=_ordered(tuple(heads), config.task),
        embedding_size=embedding_size,
        matryoshka=config.matryoshka if embedding_size else None,
        labels=labels,
        is_causal=is_causal,
        needs_all_tokens=config.pooling != "LAST" or config.has_steps,
        generates=generates,
        has_steps=config.has_steps,
        chunked_processing=config.chunked_processing,
        max_embed_len=config.max_embed_len,
    )
    if "embed" not in facts.tasks and (facts.chunked_processing or facts.max_embed_len):
        text = "enable_chunked_processing and max_embed_len need a model with the task embed"
        raise ModelError(f"pooler_config: {text}; the model's tasks: {', '.join(facts.tasks)}.")
    defaults = PoolingSpec(
        facts.tasks[0],
        dimensions=config.dimensions,
        step_tag_id=config.step_tag_id,
        returned_token_ids=config.returned_token_ids,
    )
    for task in facts.tasks:
        _check_defaults(facts, PoolingSpec(task).with_defaults(defaults))
    return Pooling(Pooler(config.pooling, heads, defaults), facts)


def _check_defaults(facts: PoolingFacts, defaults: PoolingSpec) -> None:
    try:
        facts.check(defaults)
    except Exception as error:
        raise ModelError(f"pooler_config: {one_line(error)}") from error


def _ordered(tasks: tuple[Task, ...], first: Task | None) -> tuple[Task, ...]:
    if first is None:
        return tasks
    if first not in tasks:
        raise ModelError(f"pooler_config: unsupported task: {first!r}; the model's tasks: {', '.join(tasks)}.")
    return (first, *(task for task in tasks if task != first))


def dense_layer(module: DenseModule, device: torch.device) -> DenseLayer:
    """Return a Dense layer of the sentence-transformers library with its activation; raise ModelError if its file is wrong."""
    path = find_model_file(module.folder, "model.safetensors", is_weights=True)
    if path is None:
        raise ModelError(f"{module.folder} has no model.safetensors.")
    try:
        tensors = load_file(path)
    except Exception as error:  # any error that the library raises for a broken file
        raise ModelError(f"{path} cannot be read: {one_line(error)}.") from error
    prefix = next((each for each in _DENSE_NAMES if f"{each}weight" in tensors), "linear.")
    weight, bias = tensors.get(f"{prefix}weight"), tensors.get(f"{prefix}bias")
    shape = (module.out_features, module.in_features)
    if weight is None or tuple(weight.shape) != shape or (module.has_bias and bias is None):
        raise ModelError(f"{path} must have linear.weight of shape {shape}{' and linear.bias' if module.has_bias else ''}.")
    own_bias = bias.float().to(device) if module.has_bias and bias is not None else None
    return DenseLayer(PlainLinear(weight.float().to(device), own_bias), ACTIVATIONS[module.activation])
