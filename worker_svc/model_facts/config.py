"""Model config: describes a decoder, layer by layer. The defaults of ModelConfig are Llama's values.

families/ reads this description from a model's files, and every device builds its program from it. traits.py names the
differences from Llama.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tetrad.worker_svc.model_facts.states import State
from tetrad.worker_svc.model_facts.tensor_names import CANONICAL, TensorNames

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
HeadNorms = Literal["none", "head", "each", "whole", "unit"]
CacheKind = int | Literal["state"] | None
"""Content of a cache for a sequence: keys and values of all tokens (None), those of a window (its size), or a state."""
Router = Literal["softmax", "softmax_chosen", "sigmoid_input", "grouped_softmax", "grouped_sigmoid"]


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotation of queries and keys by position.

    Attributes:
        dim: number of rotated dimensions, the first ones of a head.
        theta: base of the frequencies.
        scaling: the config's rope_scaling; None: no scaling.
        axes: [dim / 2], the axis by whose positions a pair turns: 0 time, 1 height, 2 width (M-RoPE); empty: positions have
            one axis.
    """

    dim: int
    theta: float
    scaling: Mapping[str, Any] | None = field(default=None, hash=False)
    axes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryScaling:
    """The scaling of queries by position: times 1 + beta * ln(1 + floor((position + offset) / period))."""

    beta: float
    period: float
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts instead of an MLP.

    Attributes:
        num_experts, num_chosen: number of experts, and number of experts that compute a token.
        intermediate_size: intermediate size of each expert.
        router: softmax: over all experts, then the largest; softmax_chosen: over the largest only; sigmoid_input: the chosen
            expert's input times the sigmoid of its score (Llama 4); grouped_softmax, grouped_sigmoid: DeepSeek V2's and V3's.
        is_renormalized: whether the weights of the chosen experts are divided by their sum.
        scale: factor of the weights of the chosen experts.
        num_groups, num_chosen_groups: groups of the grouped routers; experts are chosen only from the best groups.
        shared_size: intermediate size of the shared expert, an MLP that computes every token; 0: no shared expert.
        has_shared_gate: whether the shared expert's output is multiplied by the sigmoid of a score.
        clamp: bound of gate and up in gpt-oss's activation; 0: use the model's activation.
        has_biases: whether experts have the biases of the model's MLPs; a shared expert always has them.
        own: the experts of this rank; None: all.
    """

    num_experts: int
    num_chosen: int
    intermediate_size: int
    router: Router = "softmax"
    is_renormalized: bool = True
    scale: float = 1.0
    num_groups: int = 1
    num_chosen_groups: int = 1
    shared_size: int = 0
    has_shared_gate: bool = False
    clamp: float = 0.0
    has_biases: bool = False
    own: range | None = None

    @property
    def numbers(self) -> range:
        """The numbers of this rank's experts."""
        return range(self.num_experts) if self.own is None else self.own


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of multi-head latent attention. The cache has one head of rank + rotary_dim dimensions.

    Attributes:
        query_rank: size of the latent of queries; 0: queries have no latent.
        rank: size of the latent of keys and values.
        plain_dim, rotary_dim: dimensions of a head's queries and keys without and with rotary embeddings.
        value_dim: dimensions of a head's values.
    """

    query_rank: int
    rank: int
    plain_dim: int
    rotary_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """The properties of one layer.

    Attributes:
        rope: the rotary embeddings; None: the layer has none.
        window: number of keys that a query attends to, itself included; None: all.
        intermediate_size: intermediate size of the MLP.
        chunk: size of a chunk of positions; a query attends only to keys of its own chunk; None: no chunks.
        experts: the experts that replace the MLP; None: an MLP.
        query_scaling: the scaling of queries by position; None: no scaling.
        state: the state in addition to attention, or instead of it; None: no state.
        has_attention, has_mlp: whether the layer has attention, and an MLP or experts.
    """

    rope: Rope | None
    window: int | None
    intermediate_size: int
    experts: Experts | None = None
    query_scaling: QueryScaling | None = None
    chunk: int | None = None
    state: State | None = None
    has_attention: bool = True
    has_mlp: bool = True

    @property
    def has_mixer(self) -> bool:
        """Whether the layer has attention or a state, which combine tokens."""
        return self.has_attention or self.state is not None

    @property
    def cache_kinds(self) -> tuple[CacheKind, ...]:
        """The kinds of this layer's caches: first the cache of attention, then the state."""
        of_attention: tuple[CacheKind, ...] = (self.window,) if self.has_attention else ()
        return of_attention + (("state",) if self.state else ())


@dataclass(frozen=True, slots=True)
class Mtp:
    """The properties of the layer for multi-token prediction. The defaults are DeepSeek V3's.

    Attributes:
        hides_first: whether the embedding of a text's second token is 0 in the layer's first input.
        continues_normed: whether the layer's next draft follows its hidden state after the norm; otherwise, the one before.
    """

    hides_first: bool = True
    continues_normed: bool = False


@dataclass(frozen=True, slots=True)
class StageOf:
    """Facts of the whole model that a pipeline stage needs.

    Attributes:
        first_layer, first_cache: numbers of the stage's first layer and first cache in the model.
        cache_kinds: the kinds of all caches of the model.
        state_size: the state size of the model.
        has_embeddings: whether the stage has the input embeddings.
        has_output: whether the stage has the last norm and the output layer.
    """

    first_layer: int
    first_cache: int
    cache_kinds: tuple[CacheKind, ...]
    state_size: int
    has_embeddings: bool
    has_output: bool


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The description of a decoder.

    Attributes:
        norm_eps: epsilon of all norms.
        norm: "rms" for RMSNorm, or "layer" for LayerNorm, which subtracts the mean.
        has_norms_before, has_norms_after: whether attention and MLP have a norm at their input, and at their output.
        is_parallel: whether attention and MLP read the same residual stream.
        is_norm_shared: whether attention and MLP share the norm at their input.
        has_norm_of_embeddings: whether embeddings are normed before the first layer.
        is_stream_normed: whether the norm before a branch replaces the residual stream.
        head_norms: norms of queries and keys before the rotation. "head": over a head's dimensions, with one weight for all
            heads; "each": with a weight for every head; "whole": over all heads together; "unit": over a head's dimensions,
            without a weight, in layers with rotary embeddings.
        are_heads_normed_last: whether these norms follow the rotation.
        biases: the matrices with biases, by the last part of their canonical names; "norm": LayerNorms.
        attention_scale: factor of the products of queries and keys.
        attention_softcap, logit_softcap: scores become softcap * tanh(score / softcap); 0: no cap.
        has_sinks: whether each head has an extra score in the softmax, without a value.
        slopes: for each head the slope of a linear bias (ALiBi): slope * (position of the key - position of the query) is added
            to the scores; empty: no biases.
        qkv_bound: bound of the values of queries, keys and values, before norms and rotation; 0: no bound.
        has_output_gate: whether the output of attention is multiplied by the sigmoid of a product of its input.
        is_gated: whether the MLP has a gate.
        embedding_multiplier, residual_multiplier, logit_multiplier: factors of embeddings, of a branch's output, of logits.
        latent: latent attention instead of KV heads; None: KV heads.
        num_learned_positions: rows of a table of positions that is added to embeddings; 0: no table.
        num_deep_layers: number of first layers behind which further rows of images are added (DeepStack).
        encoder_length: number of positions of the encoder's output, to all of which every layer attends (cross-attention)
            between attention and the MLP; 0: the model is a decoder alone.
        mtp: the properties of the layer for multi-token prediction, if the checkpoint has one.
        tensors: the names of tensors in the checkpoint.
        stage: the pipeline stage that the layers belong to; None: the whole model.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_scale: float
    layers: tuple[LayerConfig, ...]
    norm: Literal["rms", "layer"] = "rms"
    has_norms_before: bool = True
    has_norms_after: bool = False
    is_parallel: bool = False
    is_norm_shared: bool = False
    has_norm_of_embeddings: bool = False
    is_stream_normed: bool = False
    head_norms: HeadNorms = "none"
    are_heads_normed_last: bool = False
    biases: frozenset[str] = frozenset()
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    has_sinks: bool = False
    slopes: tuple[float, ...] = ()
    qkv_bound: float = 0.0
    has_output_gate: bool = False
    activation: Activation = "silu"
    is_gated: bool = True
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    latent: Latent | None = None
    num_learned_positions: int = 0
    num_deep_layers: int = 0
    encoder_length: int = 0
    mtp: Mtp = Mtp()
    tensors: TensorNames = CANONICAL
    stage: StageOf | None = None

    @property
    def embedding_size(self) -> int:
        """The size of embeddings that may replace token ids; 0: not supported, because the model scales its embeddings."""
        return self.hidden_size if self.embedding_multiplier == 1 else 0

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def has_embeddings(self) -> bool:
        """Whether the input embeddings are in front of the layers: in a whole model, or in the stage that has them."""
        return self.stage is None or self.stage.has_embeddings

    @property
    def has_output(self) -> bool:
        """Whether the last norm and the output layer are behind the layers: in a whole model, or in the stage that has them."""
        return self.stage is None or self.stage.has_output

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        """The window of each layer with attention."""
        return tuple(layer.window for layer in self.layers if layer.has_attention)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The different windows of layers with attention."""
        return tuple(dict.fromkeys(self.layer_windows))

    @property
    def ropes(self) -> tuple[Rope | None, ...]:
        """The different rotary embeddings of layers with attention."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers if layer.has_attention))

    @property
    def has_axes(self) -> bool:
        """Whether rotary embeddings turn by positions on three axes (M-RoPE)."""
        return any(rope.axes for rope in self.ropes if rope)

    @property
    def cache_kinds(self) -> tuple[CacheKind, ...]:
        """The kind of each cache, in the order in which layers use them."""
        return tuple(kind for layer in self.layers for kind in layer.cache_kinds)

    @property
    def state_size(self) -> int:
        """The number of values in a layer's state, the same for all layers; 0 if no layer has a state."""
        if self.stage is not None:
            return self.stage.state_size
        return max((layer.state.state_size for layer in self.layers if layer.state), default=0)
