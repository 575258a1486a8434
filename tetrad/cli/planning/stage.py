"""Stage: computes the memory, the bytes read and the operations of one rank of a pipeline stage, from a model's description.

Knows sizes; knows no GPU and no times.
"""

import math
import re
from dataclasses import dataclass

from tetrad.cli.planning.number_types import WeightBytes
from tetrad.worker_svc.kv_cache.layer_groups import LayerGroup, group_layers
from tetrad.worker_svc.model_facts.config import LayerConfig, ModelConfig
from tetrad.worker_svc.model_facts.states import bytes_per_token
from tetrad.worker_svc.model_facts.tensors import tensor_shapes

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_STATE_BYTES = 4
_VALUE_BYTES = 2
"""Bytes of one value of the activations."""
_SAMPLER_BYTES = 16
"""Bytes of the float32 logits and the sampler's copies of them, per id of the vocabulary."""
_RUNTIME_BYTES = 1 << 30
"""Assumed bytes of the driver's context, libraries and captured graphs."""


@dataclass(frozen=True, slots=True)
class Step:
    """The work of a step.

    Attributes:
        num_tokens: number of new tokens of all requests.
        num_requests: number of requests, each of which samples one token.
        context: mean number of tokens that each new token attends to.
    """

    num_tokens: int
    num_requests: int
    context: float


class Stage:
    """One rank of a stage.

    Args:
        config: the sharded description: the rank's part of each layer.
        layers: numbers of the stage's layers.
        weights: sizes of tensors.
        cache_bytes: bytes of one number of keys and values.
        block_size: tokens per KV block.
        tower_bytes: bytes of the vision model's weights, which each rank that encodes images has as a whole; 0: none.
    """

    def __init__(
        self,
        config: ModelConfig,
        layers: range,
        weights: WeightBytes,
        *,
        cache_bytes: float,
        block_size: int = 16,
        tower_bytes: float = 0.0,
    ) -> None:
        self._config, self._weights = config, weights
        self._cache_bytes, self._block_size = cache_bytes, block_size
        self._layers = [config.layers[number] for number in layers]
        self.is_first, self.is_last = 0 in layers, config.num_layers - 1 in layers
        reads_images = layers.start < max(1, config.num_deep_layers)
        self._tower = tower_bytes if reads_images or self.is_last else 0.0  # the last layers' rank answers for images
        self._groups: tuple[LayerGroup, ...] = ()
        if kinds := [kind for layer in self._layers for kind in layer.cache_kinds]:
            self._groups = group_layers(kinds)
        self._tables = self._experts = self._dense = 0.0
        self._dense_values = self._expert_values = 0
        for name, shape in tensor_shapes(config).items():
            if self._has(name, layers):
                self._count(name, math.prod(shape), weights.of(name, shape))

    @property
    def weights_bytes(self) -> float:
        """The bytes of this rank's weights."""
        return self._tables + self._dense + self._experts + self._tower

    @property
    def num_sums(self) -> int:
        """The number of sums over ranks in a step: after attention and MLP (one if they are parallel), and for embeddings."""
        of_layers = sum(1 if self._config.is_parallel else layer.has_attention + layer.has_mlp for layer in self._layers)
        return of_layers + self.is_first

    def read_bytes(self, step: Step) -> float:
        """Return the bytes of weights and cache that a step reads."""
        return self._dense + self._experts * self._share_of_experts(step.num_tokens) + self._read_cache(step)

    def flops(self, step: Step) -> float:
        """Return the floating-point operations of a step; logits are computed for sampled tokens only."""
        head = self._config.vocab_size * self._config.hidden_size if self.is_last else 0
        chosen = self._expert_values * self._chosen_share()
        products = 2.0 * step.num_tokens * (self._dense_values - head + chosen) + 2.0 * step.num_requests * head
        return products + step.num_tokens * self._attention_flops(step.context)

    def cache_bytes_of(self, num_tokens: float) -> float:
        """Return the bytes of cache that a request with `num_tokens` uses; a state takes one block of a group."""
        pages = max((len(group.layers) for group in self._groups), default=0)
        token = self._token_bytes()
        return pages * sum(
            self._page_bytes_of_state() if group.is_state else token * min(num_tokens, group.sliding_window or num_tokens)
            for group in self._groups
        )

    def step_bytes(self, max_num_batched_tokens: int, max_num_seqs: int) -> float:
        """Return an estimate of the memory of the largest step, without weights and cache."""
        config = self._config
        heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        widths = [_width(layer) for layer in self._layers]
        states = [bytes_per_token(layer.state, _VALUE_BYTES) for layer in self._layers if layer.state is not None]
        of_a_token = (4 * config.hidden_size + 2 * heads + 3 * max(widths)) * _VALUE_BYTES + max(states, default=0)
        if self._tower:
            of_a_token += (1 + config.num_deep_layers) * config.hidden_size * _VALUE_BYTES  # the encoder cache
        activations = max_num_batched_tokens * of_a_token
        return _RUNTIME_BYTES + activations + self.is_last * max_num_seqs * config.vocab_size * _SAMPLER_BYTES

    def _has(self, name: str, layers: range) -> bool:
        if found := _LAYER.match(name):
            number, expert = int(found.group(1)), _EXPERT.search(name)
            experts = self._config.layers[number].experts
            return number in layers and (expert is None or experts is None or int(expert.group(1)) in experts.numbers)
        if "embed_tokens" in name:
            return self.is_first or (self.is_last and self._config.tie_word_embeddings)
        return self.is_first if "embed_" in name else self.is_last

    def _count(self, name: str, num_values: int, value_bytes: float) -> None:
        if ".experts." in name:
            self._experts += num_values * value_bytes
            self._expert_values += num_values
        elif "embed_" in name and not (self.is_last and self._config.tie_word_embeddings and "embed_tokens" in name):
            self._tables += num_values * value_bytes  # a step reads only the rows of its tokens
        else:
            self._dense += num_values * value_bytes
            self._dense_values += num_values

    def _share_of_experts(self, num_tokens: int) -> float:
        """Return the share of experts that at least one of `num_tokens` tokens chooses, if all experts are equally likely."""
        return 1 - (1 - self._chosen_share()) ** num_tokens

    def _chosen_share(self) -> float:
        found = {layer.experts for layer in self._layers if layer.experts is not None}
        return max((each.num_chosen / each.num_experts for each in found), default=0.0)

    def _read_cache(self, step: Step) -> float:
        """Return the bytes of keys, values and states that a step's requests read."""
        token = self._token_bytes()
        of_a_request = 0.0
        for layer in self._layers:
            if layer.has_attention:
                of_a_request += token * min(step.context, layer.window or step.context)
            if layer.state is not None:
                of_a_request += 2 * layer.state.state_size * _STATE_BYTES  # read and written
        return of_a_request * step.num_requests

    def _attention_flops(self, context: float) -> float:
        """Return the floating-point operations of one token with its keys and values."""
        config = self._config
        dim = config.latent.rank + config.latent.rotary_dim if config.latent else config.head_dim
        seen = sum(min(context, layer.window or context) for layer in self._layers if layer.has_attention)
        return 4.0 * config.num_heads * dim * seen

    def _token_bytes(self) -> float:
        return 2 * self._config.num_kv_heads * self._config.head_dim * self._cache_bytes

    def _page_bytes_of_state(self) -> float:
        """Return the bytes of a page that holds a state: a multiple of the size of a block."""
        size = self._config.state_size * _STATE_BYTES
        if all(group.is_state for group in self._groups):
            return size
        page = self._token_bytes() * self._block_size
        return math.ceil(size / page) * page


def _width(layer: LayerConfig) -> int:
    """Return the number of values of a token inside the MLP."""
    if not layer.has_mlp:
        return 0
    if layer.experts is None:
        return layer.intermediate_size
    return layer.experts.num_chosen * layer.experts.intermediate_size + layer.experts.shared_size
