"""Model config: describes a decoder, layer by layer. The defaults of ModelConfig are Llama's values.

families/ reads one from a model's files; every device builds its program from it (traits.py names what differs from Llama).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tetrad.worker_svc.model_facts.states import State
from tetrad.worker_svc.model_facts.tensor_names import CANONICAL, TensorNames

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
HeadNorms = Literal["none", "head", "each", "whole", "unit"]
CacheKind = int | Literal["state"] | None
"""What a cache has of a sequence: the keys and values of all tokens (None), those of a window, or a state."""
Router = Literal["softmax", "softmax_chosen", "sigmoid_input", "grouped_softmax", "grouped_sigmoid"]


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotation of queries and keys by position.

    Attributes:
        dim: how many of a head's first dimensions turn.
        theta: base of the frequencies.
        scaling: the config's rope_scaling; None: there is none.
    """

    dim: int
    theta: float
    scaling: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class QueryScaling:
    """Queries grow with their position: times 1 + beta * ln(1 + floor((position + offset) / period))."""

    beta: float
    period: float
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of an MLP.

    Attributes:
        num_experts, num_chosen: how many there are, and how many compute a token.
        intermediate_size: of each.
        router: softmax: over all experts, then the largest; softmax_chosen: over the largest only; sigmoid_input: the chosen
            expert's input times the sigmoid of its score (Llama 4); grouped_softmax, grouped_sigmoid: DeepSeek V2's and V3's.
        is_renormalized: whether the weights of the chosen experts are divided by their sum.
        scale: of the weights of the chosen experts.
        num_groups, num_chosen_groups: of the grouped routers; experts are chosen from the best groups only.
        shared_size: intermediate size of the MLP that computes every token; 0: there is none.
        has_shared_gate: whether that MLP's output is multiplied by the sigmoid of a score.
        clamp: bound of gate and up in gpt-oss's activation; 0: the activation is the model's.
        own: which experts this rank has; None: all.
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
    own: range | None = None

    @property
    def numbers(self) -> range:
        """Numbers of the experts that this rank has."""
        return range(self.num_experts) if self.own is None else self.own


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of multi-head latent attention. The cache has one head of rank + rotary_dim.

    Attributes:
        query_rank: of the latent of queries; 0: they have none.
        rank: of the latent of keys and values.
        plain_dim, rotary_dim: of a head's queries and keys: what does not turn, and what does.
        value_dim: of a head's values.
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
        rope: None: positions do not turn this layer's queries and keys.
        window: keys that a query sees, itself included; None: all.
        intermediate_size: of the MLP.
        chunk: positions are cut into chunks, and a query sees the keys of its own chunk; None: they are not.
        experts: in place of the MLP.
        query_scaling: None: there is none.
        state: beside attention, or in its place; None: there is none.
        has_attention, has_mlp: whether there is any; experts count as an MLP.
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
        """Whether tokens meet in this layer."""
        return self.has_attention or self.state is not None

    @property
    def cache_kinds(self) -> tuple[CacheKind, ...]:
        """The caches of this layer: that of its attention before its state."""
        of_attention: tuple[CacheKind, ...] = (self.window,) if self.has_attention else ()
        return of_attention + (("state",) if self.state else ())


@dataclass(frozen=True, slots=True)
class StageOf:
    """What a stage of a pipeline knows of the whole model.

    Attributes:
        first_layer, first_cache: numbers in the model of the first ones of this stage.
        cache_kinds: of all caches of the model.
        state_size: of the model.
    """

    first_layer: int
    first_cache: int
    cache_kinds: tuple[CacheKind, ...]
    state_size: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The facts of a decoder.

    Attributes:
        norm_eps: of all norms.
        norm: "rms", or "layer": with a mean that is subtracted.
        has_norms_before, has_norms_after: whether attention and MLP are normed at their input, at their output.
        is_parallel: attention and MLP read the same residual stream.
        is_norm_shared: attention and MLP have one norm at their input.
        head_norms: of queries and keys before they turn: "head": one weight for a head's dimensions; "each": one for every
            head; "whole": over all heads together;
            "unit": of a head's dimensions, without a weight, in layers that turn.
        are_heads_normed_last: the norms are behind the turn.
        biases: of which matrices, by the last part of their canonical names; "norm": of LayerNorms.
        attention_scale: of the products of queries and keys.
        attention_softcap, logit_softcap: scores become softcap * tanh(score / softcap); 0: they stay.
        has_sinks: a score of each head that takes weight from the keys, and has no value.
        has_output_gate: what attention brings is multiplied by the sigmoid of a product of its input.
        is_gated: the MLP has a gate beside the matrix that leads up.
        embedding_multiplier, residual_multiplier, logit_multiplier: of embeddings, of what a branch adds, of logits.
        latent: in place of heads of keys and values; None: there is none.
        num_learned_positions: rows of a table of positions that is added to embeddings; 0: there is none.
        tensors: where the checkpoint has them.
        stage: the layers are those of a stage of a pipeline; None: they are all.
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
    head_norms: HeadNorms = "none"
    are_heads_normed_last: bool = False
    biases: frozenset[str] = frozenset()
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    has_sinks: bool = False
    has_output_gate: bool = False
    activation: Activation = "silu"
    is_gated: bool = True
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    latent: Latent | None = None
    num_learned_positions: int = 0
    tensors: TensorNames = CANONICAL
    stage: StageOf | None = None

    @property
    def embedding_size(self) -> int:
        """Values of an embedding that may be given in place of a token id; 0: none, as families scale them differently."""
        return self.hidden_size if self.embedding_multiplier == 1 else 0

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        """The window of each layer with attention."""
        return tuple(layer.window for layer in self.layers if layer.has_attention)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The windows that layers have, each once."""
        return tuple(dict.fromkeys(self.layer_windows))

    @property
    def ropes(self) -> tuple[Rope | None, ...]:
        """The rotary embeddings that layers with attention have, each once."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers if layer.has_attention))

    @property
    def cache_kinds(self) -> tuple[CacheKind, ...]:
        """The kind of each cache, in the order in which layers use them."""
        return tuple(kind for layer in self.layers for kind in layer.cache_kinds)

    @property
    def state_size(self) -> int:
        """Numbers of a layer's state, 0 if no layer of the model has one; all layers' are alike."""
        if self.stage is not None:
            return self.stage.state_size
        return max((layer.state.state_size for layer in self.layers if layer.state), default=0)
