"""Tensor names: map canonical names, which all programs use, to the names of the tensors in a checkpoint.

Canonical names are those of Hugging Face's Llama, and a few others. Canonical values are in Llama's form too: in queries and
keys the two rows of a rotated pair are in different halves of a head, matrices are [outputs, inputs], weights of norms are the
factors.

    model.embed_tokens, model.embed_positions, model.embed_norm, model.norm, lm_head
    model.layers.N.input_layernorm, .self_attn.output_norm, .post_attention_layernorm (before the MLP), .mlp.output_norm
    model.layers.N.self_attn.{q,k,v,o}_proj, .self_attn.{q,k}_norm, .self_attn.sinks
    model.layers.N.cross_attn_layernorm, .cross_attn.{q,o}_proj (keys and values of the encoder's output are media/'s)
    model.layers.N.mlp.{gate,up,down}_proj
    model.layers.N.mlp.router, .mlp.experts.E.{gate,up,down}_proj, .mlp.shared_expert.{gate,up,down}_proj,
        .mlp.shared_expert_gate
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Rows(NamedTuple):
    """Some rows of a fused matrix with `groups` groups of `size` rows: in each group, the rows from `first` up to `end`."""

    groups: int
    size: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The name of a tensor in the files, and its conversion to the canonical form, in the order of the attributes.

    Attributes:
        name: name in the files, without the layer's prefix and without ".weight" or ".bias"; {expert} is the expert's number.
        is_stacked: the file has all experts in one tensor.
        is_transposed: the file has a matrix [inputs, outputs].
        columns: number of inputs of a matrix that some files have transposed; None: no file has.
        rows: the rows of the canonical tensor; None: all.
        is_row: the file has a matrix of one row as a vector.
        is_flat: the canonical tensor is flat, and the file has the values in rows.
        is_decay: the file has -exp of the values.
        paired: (head_dim, rotated): in each head, the first `rotated` rows have pairs side by side; None: not paired.
        plus: value added to a weight, for norms that multiply by 1 + w.
        times: factor of the tensor, for models that scale the result of a product.
        weight, bias: ends of the names of the weight and of the bias.
        otherwise: the place of the tensor if the files have no tensor of this name; None: there is no other place.
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
    """The prefixes in a larger model that replace "model." and "lm_head." of the text model."""

    model: str
    head: str


TEXT_PARTS = (
    TextPart("language_model.model.", "language_model.lm_head."),
    TextPart("model.language_model.", "lm_head."),
    TextPart("model.text_model.", "lm_head."),
    TextPart("model.", "lm_head."),
    TextPart("language_model.model.model.", "language_model.lm_head."),  # as transformers 5 saves models that read audio
)
"""Prefixes of text models in files of older and newer releases of transformers."""


@dataclass(frozen=True, slots=True)
class TensorNames:
    """The tensor names of a checkpoint that differ from the canonical ones.

    Attributes:
        text_parts: possible prefixes of the text model in a model that reads images; empty: the model has only text.
        prefixes: possible prefixes of all names; the files have one of them. Canonical names have no prefix.
        layers: the part of a name before the layer's number.
        in_layer: canonical name within a layer (for experts "mlp.experts.{expert}.up_proj") -> stored tensor.
        in_model: canonical name -> stored tensor.
        ignored: ends of the names of tensors that do not change results.
        moved: pairs (beginning of a name, beginning of the name in the files) for tensors outside of the model's layers in the
            files; the first match applies.
        unused_layers: beginnings of the names of layers that are not used.
    """

    text_parts: tuple[TextPart, ...] = ()
    prefixes: tuple[str, ...] = ("",)
    layers: str = "model.layers"
    in_layer: Mapping[str, Stored] = field(default_factory=dict, hash=False)
    in_model: Mapping[str, Stored] = field(default_factory=dict, hash=False)
    ignored: tuple[str, ...] = ()
    moved: tuple[tuple[str, str], ...] = ()
    unused_layers: tuple[str, ...] = ()


CANONICAL = TensorNames()
"""The names of a checkpoint with canonical names."""
