"""Encoder model: loads an encoder with its pooler, and defines the CPU device's LoadedModel of an encoder."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.placed import FloatWeights, PlacedWeights
from tetrad.worker_svc.checkpoint.pooler_config import PoolerConfig, PoolingType, read_pooler_config
from tetrad.worker_svc.checkpoint.pooler_overrides import override_pooler
from tetrad.worker_svc.core.device import KvGroup, KvLayout, LoadRequest, ModelInfo, refuse_loras
from tetrad.worker_svc.core.pooling import Task
from tetrad.worker_svc.devices.poolers import Classifier, Pooling, class_pooling, embedding_pooling
from tetrad.worker_svc.families.encoder_values import activation
from tetrad.worker_svc.families.encoders import COLBERT, pooled_size, read_encoder_config
from tetrad.worker_svc.layers.linear import PackedLinear, PlainLinear, can_pack
from tetrad.worker_svc.layers.norm import LayerNorm
from tetrad.worker_svc.layers.pooling_heads import Layer
from tetrad.worker_svc.model_facts.encoder import EncoderConfig
from tetrad.worker_svc.models.encoder import ACTIVATION_FUNCTIONS, Encoder
from tetrad.worker_svc.models.encoder_weights import EncoderWeights
from tetrad.worker_svc.models.packed_prompts import PackedEncoder
from tetrad.worker_svc.native.encoder import NativeEncoder
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.runner.encoder_runner import EncoderRunner

_HOST = torch.device("cpu")
_LEAST_FIXED_SIZE = 256
_POOLED = ("Bert", "NomicBert", "Gte", "New")
"""Families whose classifier reads the output of BERT's pooler layer."""
_WITHOUT_EFFECT = (
    "position_ids",
    "pooler.dense.weight",
    "pooler.dense.bias",
    "cls.",
    "lm_head.",
    "vocab_transform.",
    "vocab_projector.",
    "vocab_layer_norm.",
    "decoder.",
    "head.",
)
"""Parts of the names of unused tensors: those for training, and heads of tasks that are not supported."""


class EncoderParts(NamedTuple):
    """A loaded encoder, its pooler and its facts."""

    encoder: PackedEncoder
    pooling: Pooling
    info: ModelInfo


BuildEncoder = Callable[[EncoderConfig, EncoderWeights, PoolerConfig], PackedEncoder]
"""Function (description, tensors, pooler configuration) -> the program that runs the encoder."""


class EncoderModel:
    """A LoadedModel in host memory, without a KV cache."""

    def __init__(self, encoder: PackedEncoder, pooling: Pooling, info: ModelInfo) -> None:
        self._encoder, self._pooling = encoder, pooling
        self.info, self.loras = info, None

    def kv_groups(self, block_size: int) -> tuple[KvGroup, ...]:  # noqa: ARG002 - as LoadedModel
        """Return no groups: an encoder has no KV cache."""
        return ()

    def make_runner(self, layout: KvLayout) -> EncoderRunner:
        """Return the runner of steps; nothing is allocated."""
        return EncoderRunner(self._encoder, self._pooling.pooler, self._pooling.facts, layout)

    def sleep(self) -> None:
        """Do nothing: the weights are already in host memory."""

    def wake_up(self) -> None:
        """Do nothing: the weights have not moved."""


def host_encoder(request: LoadRequest, team: Team | None) -> BuildEncoder:
    """Return a function that builds an encoder on the host; `team` runs the native kernels, None: torch runs the encoder."""

    def build(facts: EncoderConfig, tensors: EncoderWeights, pools: PoolerConfig) -> PackedEncoder:
        if team is None:
            return Encoder(facts, tensors, PackedLinear if can_pack() else PlainLinear)
        takes_fixed = request.dtype != "float32" and _takes_fixed(facts, pools)
        return NativeEncoder(facts, tensors, team, takes_fixed=takes_fixed)

    return build


def check_options(request: LoadRequest) -> None:
    """Raise ModelError for an option that encoders do not support."""
    refuse_loras(request, "encoders")
    if request.runner == "generate" or request.convert not in ("auto", "none"):
        option = "runner generate" if request.runner == "generate" else f"convert {request.convert[:80]}"
        raise ModelError(f"{option} is not supported for encoders: they pool as their files say.")
    if request.random_weights or request.quantization:
        option = "load_format dummy" if request.random_weights else f"quantization {request.quantization}"
        raise ModelError(f"{option} is not supported for encoders.")


def load_encoder(
    request: LoadRequest,
    config: Mapping[str, Any],
    weights: WeightLoader,
    build: BuildEncoder,
    *,
    stored_type: str,
    device: torch.device = _HOST,
    dtype: torch.dtype = torch.float32,
) -> EncoderParts:
    """Return an encoder with its weights and its pooler; raise ModelError if the files cannot be served.

    Args:
        request: the model and its options.
        config: the values of config.json.
        weights: the tensors of the files.
        build: builds the program that runs the encoder.
        stored_type: type of most weights in the files, for the model's facts.
        device: device of all tensors.
        dtype: type of the encoder's weights; the pooler's weights are float32.
    """
    facts = read_encoder_config(config)
    pools = override_pooler(read_pooler_config(request.path, config, "CLS"), request.pooler_config_json)
    tensors = EncoderWeights(facts, PlacedWeights(weights, device, dtype))
    encoder = build(facts, tensors, pools)
    pooling = _pooling(config, facts, pools, PlacedWeights(weights, device), tensors.prefix)
    weights.check_all_read(facts.architecture, without_effect=_WITHOUT_EFFECT)
    longest = min(facts.max_position_embeddings, pools.max_tokens or facts.max_position_embeddings)
    info = ModelInfo(
        model=request.model,
        architecture=facts.architecture,
        vocab_size=facts.vocab_size,
        max_position_embeddings=longest,
        dtype=str(dtype).removeprefix("torch."),
        num_parameters=weights.num_parameters,
        weights_size_bytes=weights.num_parameters * dtype.itemsize,
        num_layers=facts.num_layers,
        hidden_size=facts.hidden_size,
        weights_dtype=stored_type,
        pooling=pooling.facts,
    )
    return EncoderParts(encoder, pooling, info)


def _takes_fixed(facts: EncoderConfig, pools: PoolerConfig) -> bool:
    """Return whether to compute in fixed point: for embeddings of length 1, it changes values by less than 1e-4.

    Small hidden sizes gain no speed from it.
    """
    is_classifier = facts.is_sequence_classifier or facts.is_token_classifier
    return not is_classifier and pools.embeds_normalized and facts.hidden_size >= _LEAST_FIXED_SIZE


def _pooling(
    config: Mapping[str, Any], facts: EncoderConfig, pools: PoolerConfig, weights: FloatWeights, prefix: str
) -> Pooling:
    if facts.is_sequence_classifier or facts.is_token_classifier:
        task: Task = "classify" if facts.is_sequence_classifier else "token_classify"
        classifier = Classifier.of(config, _classifier(config, facts, weights, prefix), facts.labels, (task,))
        # A classifier's own layers read the first token; modules.json is about embeddings.
        pooling: PoolingType = "MEAN" if facts.classifies_mean else "CLS"
        return class_pooling(replace(pools, pooling=pooling), classifier, is_causal=False)
    if facts.architecture == COLBERT:
        size = pooled_size(config)
        projection = [PlainLinear(weights.get("linear.weight", (size, facts.hidden_size)), None)]
        tasks: tuple[Task, ...] = ("token_embed",)
        return embedding_pooling(pools, size, is_causal=False, tasks=tasks, projection=projection, device=weights.device)
    return embedding_pooling(pools, facts.hidden_size, is_causal=False, device=weights.device)


def _classifier(config: Mapping[str, Any], facts: EncoderConfig, weights: FloatWeights, prefix: str) -> list[Layer]:
    """Return the layers from a hidden state to the logits, as in transformers' classes of the family."""
    hidden, num_labels = facts.hidden_size, len(facts.labels)

    def linear(name: str, num_outputs: int) -> Layer:
        bias = weights.get(f"{name}.bias", (num_outputs,)) if weights.has(f"{name}.bias") else None
        return PlainLinear(weights.get(f"{name}.weight", (num_outputs, hidden)), bias)

    if facts.family == "ModernBert":
        bias = weights.get("head.norm.bias", (hidden,)) if weights.has("head.norm.bias") else None
        norm = LayerNorm(weights.get("head.norm.weight", (hidden,)), bias, facts.norm_eps)
        function = ACTIVATION_FUNCTIONS[activation(config, "classifier_activation")]
        return [linear("head.dense", hidden), function, norm, linear("classifier", num_labels)]
    if facts.is_token_classifier:
        return [linear("classifier", num_labels)]
    if facts.family in _POOLED:
        return [linear(f"{prefix}pooler.dense", hidden), torch.tanh, linear("classifier", num_labels)]
    if facts.family == "DistilBert":
        return [linear("pre_classifier", hidden), torch.relu, linear("classifier", num_labels)]
    return [linear("classifier.dense", hidden), torch.tanh, linear("classifier.out_proj", num_labels)]
