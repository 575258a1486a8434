"""Encoder config: describes an encoder and the names of its tensors in a checkpoint. The defaults are BERT's values.

families/ reads this description from config.json; the torch encoder and the native encoder are built from it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from tetrad.worker_svc.model_facts.config import Activation, Rope

BIASES = frozenset({"qkv", "attention_out", "gate_up", "down", "norm"})
"""All parts that may have biases."""


class Part(NamedTuple):
    """A matrix: part `place`, from 0, of `parts` equal parts of a tensor's rows; {} is replaced by the layer's number."""

    name: str
    place: int = 0
    parts: int = 1


_QUERY, _KEY, _VALUE = (Part(f"encoder.layer.{{}}.attention.self.{name}") for name in ("query", "key", "value"))
_UP, _NO_GATE = Part("encoder.layer.{}.intermediate.dense"), Part("")


@dataclass(frozen=True, slots=True)
class EncoderNames:
    """The names of tensors in a checkpoint; {} is replaced by the layer's number.

    Attributes:
        prefixes: possible prefixes of the encoder's tensors, in files with and without a head.
        embedding_norm: the LayerNorm after the embeddings.
        final_norm: the LayerNorm after the last layer; empty: none.
        query, key, value, attention_out, attention_norm, up, gate, down, output_norm: the tensors of a layer.
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
    """The description of an encoder (Devlin et al. 2018, section 3.1): attention and MLP, each with a LayerNorm.

    Attributes:
        architecture: name of the architecture in config.json.
        family: family of the architecture: "Bert", "Roberta", ...
        num_token_types: number of token types; 0: no embeddings of token types.
        max_position_embeddings: number of tokens in the longest prompt.
        first_position: position of the first token; in RoBERTa, the padding id + 1.
        activation: activation of the MLP: "gelu", "gelu_tanh", "relu" or "silu".
        labels: names of the classes, by index; empty: no classifier.
        classifies_mean: whether the classifier reads the mean of all tokens, not the first token.
        ropes: the rotary embeddings of each layer; empty: learned positions.
        windows: for each layer, the number of tokens on each side that a token attends to, 0: all; empty: all in every layer.
        biases: the parts with biases, from BIASES.
        is_gated: whether the MLP multiplies its activated gate with another product.
        norms_first: whether LayerNorms are at the input of attention and MLP, with another one after the last layer.
        has_first_norm: whether the first layer's attention has such a LayerNorm too.
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
        """The number of dimensions of a head."""
        return self.hidden_size // self.num_heads

    @property
    def is_sequence_classifier(self) -> bool:
        """Whether the files contain a classifier of whole prompts."""
        return self.architecture.endswith("ForSequenceClassification")

    @property
    def is_token_classifier(self) -> bool:
        """Whether the files contain a classifier of tokens."""
        return self.architecture.endswith("ForTokenClassification")
