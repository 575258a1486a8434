"""Tensor names: map canonical names, which all programs use, to the names of the tensors in a checkpoint.

Canonical names are those of Hugging Face's Llama, and a few beside them; canonical values are Llama's too: queries and keys
with the halves of a pair apart, matrices [outputs, inputs], weights of norms that are the factor itself.

    model.embed_tokens, model.embed_positions, model.norm, lm_head
    model.layers.N.input_layernorm, .self_attn.output_norm, .post_attention_layernorm (before the MLP), .mlp.output_norm
    model.layers.N.self_attn.{q,k,v,o}_proj, .self_attn.{q,k}_norm, .self_attn.sinks
    model.layers.N.mlp.{gate,up,down}_proj
    model.layers.N.mlp.router, .mlp.experts.E.{gate,up,down}_proj, .mlp.shared_expert.{gate,up,down}_proj,
        .mlp.shared_expert_gate
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Rows(NamedTuple):
    """Some rows of a fused matrix: it has so many groups of so many rows, and of each those from `first` up to `end` count."""

    groups: int
    size: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor is, and what is done to it; in the order of the attributes.

    Attributes:
        name: in the files, without what is before every layer's, and without ".weight" or ".bias"; {expert} is its number.
        is_stacked: the file has all experts in one tensor.
        is_transposed: the file has a matrix [inputs, outputs].
        columns: inputs of a matrix that some files have transposed; None: all have it alike.
        rows: the ones that count; None: all.
        is_row: the file has a matrix of one row as a vector.
        is_flat: the values of all heads follow each other in the canonical tensor, the file has them in rows.
        is_decay: the file has -exp of the values.
        paired: (head_dim, turned): rows come in heads whose first `turned` have the two of a pair side by side; None: apart.
        plus: added to a weight: norms that multiply by 1 + w.
        times: the tensor is multiplied by it: models that scale what a product brings.
        weight, bias: how the names of the weight and of the bias end.
        otherwise: where it is if the files have no tensor of this name; None: nowhere.
    """

    name: str
    is_stacked: bool = False
    is_transposed: bool = False
    columns: int | None = None
    rows: Rows | None = None
    is_row: bool = False
    is_flat: bool = False
    is_decay: bool = False
    paired: tuple[int, int] | None = None
    plus: float = 0.0
    times: float = 1.0
    weight: str = ".weight"
    bias: str = ".bias"
    otherwise: "Stored | None" = None


class TextPart(NamedTuple):
    """Where a larger model has its text model: what stands for "model." and for "lm_head."."""

    model: str
    head: str


TEXT_PARTS = (
    TextPart("language_model.model.", "language_model.lm_head."),
    TextPart("model.language_model.", "lm_head."),
    TextPart("model.text_model.", "lm_head."),
    TextPart("model.", "lm_head."),
)
"""Where files have a text model: as older and newer releases of transformers save it."""


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names that differ from the canonical ones.

    Attributes:
        text_parts: where the files of a model that reads images may have the text model; none: the files are its own.
        prefixes: of all names, whichever the files have; canonical names that stay have none.
        layers: what precedes a layer's number.
        in_layer: canonical name within a layer, experts as "mlp.experts.{expert}.up_proj" -> where it is.
        in_model: canonical name -> where it is.
        ignored: how tensors' names end that nothing depends on.
        unused_layers: how the names begin of layers that do not take part.
    """

    text_parts: tuple[TextPart, ...] = ()
    prefixes: tuple[str, ...] = ("",)
    layers: str = "model.layers"
    in_layer: Mapping[str, Stored] = field(default_factory=dict, hash=False)
    in_model: Mapping[str, Stored] = field(default_factory=dict, hash=False)
    ignored: tuple[str, ...] = ()
    unused_layers: tuple[str, ...] = ()


CANONICAL = TensorNames()
"""A checkpoint whose names are the canonical ones."""
