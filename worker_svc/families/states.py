"""Common part of families with states: determines the layers with a state, and the names of its tensors in checkpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.decoder import ACTIVATIONS, NO_VALUES
from tetrad.worker_svc.families.values import Values
from tetrad.worker_svc.model_facts.config import LayerConfig, ModelConfig
from tetrad.worker_svc.model_facts.states import State
from tetrad.worker_svc.model_facts.tensor_names import Rows, Stored, TensorNames

_LONGEST = 1 << 17
"""Largest number of tokens in a sequence if the config sets no limit; the size of a state does not depend on it."""
_KINDS = {
    "full_attention": True,
    "attention": True,
    "linear_attention": False,
    "mamba": False,
    "conv": False,
}
"""Names of layers' kinds -> whether such a layer has attention; the others have a state."""
_WHOLE = ("dt_bias", "A_log", "D", "norm", "out_proj")


def attention_layers(values: Values, default: Sequence[bool]) -> list[bool]:
    """Return whether each layer has attention: from layer_types, or `default` if the config has none."""
    number = values.num_layers()
    kinds = values.get("layer_types", "layers_block_type")
    if kinds is None:
        return list(default)
    unknown = sorted({str(kind) for kind in kinds} - set(_KINDS))
    if unknown or len(kinds) != number:
        raise ModelError(
            f"The model's config has layer_types for {len(kinds)} of {number} layers: {', '.join(unknown)[:80] or 'too few'};"
            f" supported: {', '.join(_KINDS)}."
        )
    return [_KINDS[kind] for kind in kinds]


def with_states(config: ModelConfig, state: State, have_attention: Sequence[bool], **changes: Any) -> ModelConfig:
    """Return the config with a state in each layer without attention; `changes` are attributes of the whole model."""
    layers = [
        layer if has_attention else replace(layer, rope=None, window=None, has_attention=False, state=state)
        for layer, has_attention in zip(config.layers, have_attention, strict=True)
    ]
    return replace(config, layers=tuple(layers), **changes)


def states_alone(values: Values, state: State, names: Mapping[str, Stored], *, norm_eps: float, is_tied: bool) -> ModelConfig:
    """Describe a model whose layers are states alone, as transformers stores Mamba and Mamba2.

    Args:
        values: the model's config.
        state: the state of each layer.
        names: stored names of the state's tensors.
        norm_eps: epsilon of the norms.
        is_tied: whether the output layer is the embedding if the config does not say.
    """
    biases = {"conv"} if values.get("use_conv_bias", default=True) else set()
    if values.get("use_bias", default=False):
        biases |= {*state.parts, "out_proj"}
    return ModelConfig(
        architecture=values.architecture,
        vocab_size=int(values.need("vocab_size")),
        hidden_size=int(values.need("hidden_size")),
        num_heads=0,
        num_kv_heads=0,
        head_dim=0,
        norm_eps=norm_eps,
        max_position_embeddings=int(values.get("max_position_embeddings", default=_LONGEST)),
        tie_word_embeddings=bool(values.get("tie_word_embeddings", default=is_tied)),
        attention_scale=1.0,
        layers=(LayerConfig(None, None, 0, state=state, has_attention=False, has_mlp=False),) * values.num_layers(),
        biases=frozenset(biases),
        tensors=TensorNames(
            layers="backbone.layers",
            in_layer={**names, "input_layernorm": Stored("norm")},
            in_model={"model.embed_tokens": Stored("backbone.embeddings"), "model.norm": Stored("backbone.norm_f")},
        ),
    )


def check_silu(values: Values, *keys: str) -> None:
    """Raise ModelError unless the activation of the convolution is silu."""
    if values.choose(*keys, known=ACTIVATIONS, default="silu") != "silu":
        raise ModelError(f"The model's config has {keys[0]} {values.get(*keys)!r}, which is not supported; supported: silu.")


def mixer_names(prefix: str, state: State, *, convolution: str = "conv1d") -> dict[str, Stored]:
    """Return the stored names of a state layer's tensors in models like Mamba: one input matrix, in the order of `parts`.

    Args:
        prefix: prefix of the tensors' names within a layer.
        state: the sizes of the layer.
        convolution: name of the convolution's tensor.
    """
    names = {f"mixer.{name}": Stored(f"{prefix}.{name}") for name in _WHOLE}
    names["mixer.conv"] = Stored(f"{prefix}.{convolution}", is_flat=True)
    return names | fused_parts(f"{prefix}.in_proj", state.parts)


def parts_by_heads(name: str, parts: Mapping[str, int], num_heads: int) -> dict[str, Stored]:
    """Return the rows of each part in a layer's fused matrix, where the parts follow one another within each head's rows."""
    ends = list(accumulate(parts.values()))
    return {
        f"mixer.{part}": Stored(name, rows=Rows(num_heads, ends[-1], end - size, end))
        for (part, size), end in zip(parts.items(), ends, strict=True)
    }


def fused_parts(name: str, parts: Mapping[str, int], times: Mapping[str, float] = NO_VALUES) -> dict[str, Stored]:
    """Return the rows of each part in a layer's fused matrix, where the parts follow one another; `times` are their factors."""
    ends = list(accumulate(parts.values()))
    return {
        f"mixer.{part}": Stored(name, rows=Rows(1, ends[-1], end - size, end), times=times.get(part, 1.0))
        for (part, size), end in zip(parts.items(), ends, strict=True)
    }


def step_names(name: str) -> dict[str, Stored]:
    """Return the names of the product of Mamba's time steps. Its bias is added in float32, so it has a name of its own."""
    return {"mixer.dt_proj": Stored(name, bias=""), "mixer.dt_bias": Stored(f"{name}.bias")}
