"""Tensors of a model: lists their canonical names and shapes from its description."""

from collections.abc import Iterator
from dataclasses import replace

from tetrad.worker_svc.model_facts.config import Experts, Latent, LayerConfig, ModelConfig
from tetrad.worker_svc.model_facts.states import GatedDeltaRule, Mamba1, ShortConvolution, State

Shape = tuple[int, ...]


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Return the canonical name and the shape of every tensor of a model."""
    hidden = config.hidden_size
    shapes = dict(_norm(config, "model.norm")) | {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    if config.num_learned_positions:
        shapes["model.embed_positions.weight"] = (config.num_learned_positions, hidden)
    if config.has_norm_of_embeddings:
        shapes |= _norm(config, "model.embed_norm")
    if not config.tie_word_embeddings:
        shapes |= _matrix(config, "lm_head", config.vocab_size, hidden)
    for index, layer in enumerate(config.layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in _layer(config, layer)}
    return shapes


def _layer(config: ModelConfig, layer: LayerConfig) -> Iterator[tuple[str, Shape]]:
    if config.has_norms_before:
        if layer.has_mixer:
            yield from _norm(config, "input_layernorm")
        if layer.has_mlp and not config.is_norm_shared:
            yield from _norm(config, "post_attention_layernorm")
    if config.has_norms_after:
        yield from _norm(config, "self_attn.output_norm")
        if layer.has_mlp:
            yield from _norm(config, "mlp.output_norm")
    if layer.has_attention:
        yield from _attention(config)
    if layer.state is not None:
        yield from _state(config, layer.state)
    if config.encoder_length:
        yield from _cross_attention(config)
    if not layer.has_mlp:
        return
    if layer.experts is None:
        yield from _mlp(config, "mlp", layer.intermediate_size).items()
    else:
        yield from _experts(config, layer.experts)


def _attention(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    if config.latent is not None:
        yield from _latent(config, config.latent)
        return
    hidden, dim = config.hidden_size, config.head_dim
    query, key = config.num_heads * dim, config.num_kv_heads * dim
    for name, rows in (("q_proj", query), ("k_proj", key), ("v_proj", key)):
        yield from _matrix(config, f"self_attn.{name}", rows, hidden).items()
    yield from _matrix(config, "self_attn.o_proj", hidden, query).items()
    if config.has_output_gate:
        yield from _matrix(config, "self_attn.output_gate_proj", query, hidden).items()
    if config.head_norms not in ("none", "unit"):
        is_one = config.head_norms == "head"
        yield "self_attn.q_norm.weight", (dim if is_one else query,)
        yield "self_attn.k_norm.weight", (dim if is_one else key,)
    if config.has_sinks:
        yield "self_attn.sinks", (config.num_heads,)


def _cross_attention(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    hidden, query = config.hidden_size, config.num_heads * config.head_dim
    yield from _norm(config, "cross_attn_layernorm")
    yield from _matrix(config, "cross_attn.q_proj", query, hidden).items()
    yield from _matrix(config, "cross_attn.o_proj", hidden, query).items()


def _state(config: ModelConfig, state: State) -> Iterator[tuple[str, Shape]]:
    for part, rows in state.parts.items():
        yield from _matrix(config, f"mixer.{part}", rows, config.hidden_size).items()
    yield from _matrix(config, "mixer.out_proj", config.hidden_size, state.size).items()
    yield "mixer.conv.weight", (state.conv_size * state.kernel,)
    if "conv" in config.biases:
        yield "mixer.conv.bias", (state.conv_size,)
    if isinstance(state, ShortConvolution):
        return
    if isinstance(state, Mamba1):
        yield from _selection(config, state)
        return
    heads = state.num_value_heads if isinstance(state, GatedDeltaRule) else state.num_heads
    yield from (("mixer.dt_bias", (heads,)), ("mixer.A_log", (heads,)))
    if isinstance(state, GatedDeltaRule):
        yield "mixer.norm.weight", (state.value_dim,)
        return
    yield "mixer.D", (heads,)
    if state.gated_norm != "none":
        yield "mixer.norm.weight", (state.size,)


def _selection(config: ModelConfig, state: Mamba1) -> Iterator[tuple[str, Shape]]:
    yield from _matrix(config, "mixer.x_proj", state.step_rank + 2 * state.state_dim, state.size).items()
    yield from _matrix(config, "mixer.dt_proj", state.size, state.step_rank).items()
    yield from (("mixer.dt_bias", (state.size,)), ("mixer.A_log", (state.size * state.state_dim,)), ("mixer.D", (state.size,)))
    if state.selection_norm == "weighted":
        for name, size in (("dt", state.step_rank), ("b", state.state_dim), ("c", state.state_dim)):
            yield f"mixer.{name}_layernorm.weight", (size,)


def _latent(config: ModelConfig, latent: Latent) -> Iterator[tuple[str, Shape]]:
    query, hidden = config.num_heads * (latent.plain_dim + latent.rotary_dim), config.hidden_size
    if latent.query_rank:
        yield from _matrix(config, "self_attn.q_a_proj", latent.query_rank, hidden).items()
        yield "self_attn.q_a_layernorm.weight", (latent.query_rank,)
        yield "self_attn.q_b_proj.weight", (query, latent.query_rank)
    else:
        yield "self_attn.q_proj.weight", (query, hidden)
    yield from _matrix(config, "self_attn.kv_a_proj_with_mqa", latent.rank + latent.rotary_dim, hidden).items()
    yield "self_attn.kv_a_layernorm.weight", (latent.rank,)
    yield "self_attn.kv_b_proj.weight", (config.num_heads * (latent.plain_dim + latent.value_dim), latent.rank)
    yield from _matrix(config, "self_attn.o_proj", hidden, config.num_heads * latent.value_dim).items()


def _experts(config: ModelConfig, experts: Experts) -> Iterator[tuple[str, Shape]]:
    yield from _matrix(config, "mlp.router", experts.num_experts, config.hidden_size).items()
    of_experts = config if experts.has_biases else replace(config, biases=frozenset())
    for number in range(experts.num_experts):
        yield from _mlp(of_experts, f"mlp.experts.{number}", experts.intermediate_size).items()
    if experts.router == "grouped_sigmoid":
        yield "mlp.router_correction", (experts.num_experts,)
    if experts.shared_size:
        yield from _mlp(config, "mlp.shared_expert", experts.shared_size).items()
    if experts.has_shared_gate:
        yield from _matrix(config, "mlp.shared_expert_gate", 1, config.hidden_size).items()


def _mlp(config: ModelConfig, prefix: str, size: int) -> dict[str, Shape]:
    gate = _matrix(config, f"{prefix}.gate_proj", size, config.hidden_size) if config.is_gated else {}
    up, down = f"{prefix}.up_proj", f"{prefix}.down_proj"
    return gate | _matrix(config, up, size, config.hidden_size) | _matrix(config, down, config.hidden_size, size)


def _matrix(config: ModelConfig, name: str, rows: int, columns: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{name}.weight": (rows, columns)}
    if name.rpartition(".")[2] in config.biases:
        shapes[f"{name}.bias"] = (rows,)
    return shapes


def _norm(config: ModelConfig, name: str) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (config.hidden_size,)
    if config.norm == "layer" and "norm" in config.biases:
        yield f"{name}.bias", (config.hidden_size,)
