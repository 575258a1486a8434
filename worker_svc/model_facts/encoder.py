"""Encoder config: describes an encoder and the names of its tensors in a checkpoint. The defaults are BERT's values.

families/ reads one from config.json; the torch encoder and the native one are built from it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from tetrad.worker_svc.model_facts.config import Activation, Rope

BIASES = frozenset({"qkv", "attention_out", "gate_up", "down", "norm"})
"""Everything that may have biases."""


class Part(NamedTuple):
    """A matrix: the `place`-th of `parts` equal parts of a tensor's rows; {} stands for the number of a layer."""

    name: str
    place: int = 0
    parts: int = 1


_QUERY, _KEY, _VALUE = (Part(f"encoder.layer.{{}}.attention.self.{name}") for name in ("query", "key", "value"))
_UP, _NO_GATE = Part("encoder.layer.{}.intermediate.dense"), Part("")


@dataclass(frozen=True, slots=True)
class EncoderNames:
    """How a checkpoint names its tensors; {} stands for the number of a layer.

    Attributes:
        prefixes: of the encoder's tensors, in files with a head and in files without.
        embedding_norm: LayerNorm behind the embeddings.
        final_norm: LayerNorm behind the last layer; empty: there is none.
        query, key, value, attention_out, attention_norm, up, gate, down, output_norm: of a layer.
    """

    prefixes: tuple[str, ...]
    words: str = "embeddings.word_embeddings"
    positions: str = "embeddings.position_embeddings"
    token_types: str = "embeddings.token_type_embeddings"
    embedding_norm: str = "embeddings.LayerNorm"
    final_norm: str = ""
    query: Part = _QUERY
    key: Part = _KEY
    value: Part = _VALUE
    attention_out: str = "encoder.layer.{}.attention.output.dense"
    attention_norm: str = "encoder.layer.{}.attention.output.LayerNorm"
    up: Part = _UP
    gate: Part = _NO_GATE
    down: str = "encoder.layer.{}.output.dense"
    output_norm: str = "encoder.layer.{}.output.LayerNorm"


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Facts of an encoder (Devlin et al. 2018, section 3.1): attention and MLP, each with a LayerNorm.

    Attributes:
        architecture: of config.json.
        family: of the architecture: "Bert", "Roberta", ...
        num_token_types: 0: it has no embeddings of token types.
        max_position_embeddings: tokens of the longest prompt.
        first_position: of the first token; RoBERTa's is its padding id + 1.
        activation: between the products of the MLP: "gelu", "gelu_tanh", "relu" or "silu".
        labels: names of the classes, by index; empty without a classifier.
        classifies_mean: the classifier reads the mean of all tokens, not the first.
        ropes: of each layer; empty: positions are learned.
        windows: how far a token sees to both sides, of each layer, 0: everything; empty: everything.
        biases: of BIASES.
        is_gated: the MLP multiplies its activated gate with another product.
        norms_first: LayerNorms are at the input of attention and MLP, and one is behind the last layer.
        has_first_norm: the first layer's attention has one, too.
    """

    architecture: str
    family: str
    names: EncoderNames
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    num_token_types: int
    max_position_embeddings: int
    norm_eps: float
    activation: Activation
    first_position: int = 0
    labels: tuple[str, ...] = ()
    classifies_mean: bool = False
    ropes: tuple[Rope, ...] = ()
    windows: tuple[int, ...] = ()
    biases: frozenset[str] = BIASES
    is_gated: bool = False
    norms_first: bool = False
    has_first_norm: bool = True

    @property
    def head_dim(self) -> int:
        """Dimensions of a head."""
        return self.hidden_size // self.num_heads

    @property
    def is_sequence_classifier(self) -> bool:
        """Whether a classifier over the whole prompt is part of the files."""
        return self.architecture.endswith("ForSequenceClassification")

    @property
    def is_token_classifier(self) -> bool:
        """Whether a classifier over each token is part of the files."""
        return self.architecture.endswith("ForTokenClassification")
