"""GPT-J, and the models of its time with separate queries, keys and values: CodeGen, GPT-Neo."""

from collections.abc import Mapping
from dataclasses import replace

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.decoder import MLP, decoder
from tetrad.worker_svc.families.values import FULL, SLIDING, Values
from tetrad.worker_svc.model_facts.config import ModelConfig, Rope
from tetrad.worker_svc.model_facts.tensor_names import Rows, Stored, TensorNames

_BIASES = MLP | {"norm"}
_ROTARY_DIM, _THETA = 64, 10_000.0
_CODEGEN_PARTS = 4
"""Number of parts of CodeGen's fused matrix, one for each core that it was trained on."""
_NEO_WINDOW = 256
_NEO_KINDS = {"global": FULL, "local": SLIDING}
_MASKS = ("attn.bias", "attn.masked_bias", "attn.attention.bias", "attn.attention.masked_bias", "attn.causal_mask")
"""Names of the causal masks that older files contain; they are not read."""


def gpt_j(values: Values) -> ModelConfig:
    """Describe GPT-J: attention and MLP in parallel after one norm; rotated pairs are side by side, in a part of a head."""
    config = _rotated(values)
    return _named(config, {f"self_attn.{part}_proj": Stored(f"attn.{part}_proj") for part in "qkv"})


def codegen(values: Values) -> ModelConfig:
    """Describe CodeGen: GPT-J with a fused matrix, of which each part has queries, values and keys, in this order."""
    config = _rotated(values)
    if config.num_heads % _CODEGEN_PARTS:
        raise ModelError(
            f"The model's config is impossible: {config.num_heads} heads cannot form {_CODEGEN_PARTS} equal parts."
        )
    size = config.num_heads // _CODEGEN_PARTS * config.head_dim
    rows = {part: Rows(_CODEGEN_PARTS, 3 * size, first * size, (first + 1) * size) for first, part in enumerate("qvk")}
    return _named(config, {f"self_attn.{part}_proj": Stored("attn.qkv_proj", rows=rows[part]) for part in "qkv"})


def gpt_neo(values: Values) -> ModelConfig:
    """Describe GPT-Neo: learned positions, a window in every other layer, scores of attention that are not scaled."""
    number, types = values.num_layers(), values.get("attention_types", default=[])
    kinds = [kind for names, times in types for kind in list(names) * min(int(times), number)]
    kinds = values.get("attention_layers", default=kinds) or [*_NEO_KINDS] * number
    unknown = sorted({str(kind) for kind in kinds} - set(_NEO_KINDS))
    if unknown or len(kinds) < number:
        raise ModelError(
            f"The model's config has attention_types for {len(kinds)} of {number} layers: "
            f"{', '.join(unknown)[:80] or 'too few'}; supported: {', '.join(_NEO_KINDS)}."
        )
    config = decoder(
        values,
        kinds=[_NEO_KINDS[kind] for kind in kinds[:number]],
        default_window=int(values.get("window_size", default=_NEO_WINDOW)),
        rope_kinds=(),
        is_tied=True,
        default_size=4 * int(values.need("hidden_size")),
        default_activation="gelu_new",
        attention_scale=1.0,
        norm="layer",
        is_gated=False,
        biases=_BIASES | {"o_proj"},
    )
    names = {
        **{f"self_attn.{part}_proj": Stored(f"attn.attention.{part}_proj") for part in "qkv"},
        "self_attn.o_proj": Stored("attn.attention.out_proj"),
        "post_attention_layernorm": Stored("ln_2"),
        "mlp.up_proj": Stored("mlp.c_fc"),
        "mlp.down_proj": Stored("mlp.c_proj"),
    }
    config = replace(config, num_learned_positions=config.max_position_embeddings)
    return _named(config, names, {"model.embed_positions": Stored("transformer.wpe")})


def _rotated(values: Values) -> ModelConfig:
    config = decoder(
        values,
        rope_kinds=(),
        default_size=4 * int(values.need("n_embd", "hidden_size")),
        default_activation="gelu_new",
        norm="layer",
        is_parallel=True,
        is_norm_shared=True,
        is_gated=False,
        biases=_BIASES | {"lm_head"},
    )
    rope = Rope(int(values.get("rotary_dim", default=_ROTARY_DIM)), _THETA)
    return replace(config, layers=tuple(replace(layer, rope=rope) for layer in config.layers))


def _named(config: ModelConfig, names: Mapping[str, Stored], in_model: Mapping[str, Stored] | None = None) -> ModelConfig:
    """Return the config with the names of tensors; queries and keys have their rotated pairs side by side."""
    [rope] = config.ropes
    in_layer = {
        "input_layernorm": Stored("ln_1"),
        "self_attn.o_proj": Stored("attn.out_proj"),
        "mlp.up_proj": Stored("mlp.fc_in"),
        "mlp.down_proj": Stored("mlp.fc_out"),
    } | dict(names)
    if rope is not None:
        pairs = (config.head_dim, rope.dim)
        in_layer |= {name: replace(in_layer[name], paired=pairs) for name in ("self_attn.q_proj", "self_attn.k_proj")}
    whole = {"model.embed_tokens": Stored("transformer.wte"), "model.norm": Stored("transformer.ln_f")}
    tensors = TensorNames(layers="transformer.h", in_layer=in_layer, in_model=whole | dict(in_model or {}), ignored=_MASKS)
    return replace(config, tensors=tensors)
