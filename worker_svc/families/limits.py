"""Limits of a model's sizes: refuses impossible sizes before memory is allocated."""

from tetrad.services.errors import ModelError
from tetrad.worker_svc.model_facts.config import Experts, ModelConfig
from tetrad.worker_svc.model_facts.states import GatedDeltaRule, Mamba1, Mamba2, State

_LIMITS = {
    "vocab_size": 1 << 22,
    "hidden_size": 1 << 17,
    "num_layers": 1 << 10,
    "max_position_embeddings": 1 << 24,
}
_OF_ATTENTION = {"num_heads": 1 << 12, "num_kv_heads": 1 << 12, "head_dim": 1 << 12}
_OF_STATES = {"num_heads": 1 << 12, "num_key_heads": 1 << 12, "num_value_heads": 1 << 12, "num_groups": 1 << 12}
_OF_STATES |= {"head_dim": 1 << 12, "state_dim": 1 << 12, "key_dim": 1 << 12, "value_dim": 1 << 12}
_OF_STATES |= {"step_rank": 1 << 14}
_MAX_KERNEL = 1 << 8
"""Largest kernel of a convolution. All limits are about ten times the sizes of the largest models: a file with larger sizes is
broken or hostile."""
_MAX_INTERMEDIATE_SIZE = 1 << 19
_MAX_EXPERTS = 1 << 12
_SCORED_OF_A_GROUP = 2
"""Number of a group's best experts whose scores are summed as the group's score."""


def check_limits(facts: ModelConfig) -> None:
    """Raise ModelError if a size exceeds its limit or contradicts another size."""
    for name, limit in _LIMITS.items():
        _check(name, getattr(facts, name), limit)
    for layer in facts.layers:
        if layer.has_mlp:
            _check("intermediate_size", layer.intermediate_size, _MAX_INTERMEDIATE_SIZE)
        if layer.state is not None:
            _check_state(layer.state)
        if layer.experts is not None:
            _check_experts(layer.experts)
    if facts.latent is not None:
        for name in ("rank", "plain_dim", "rotary_dim", "value_dim"):
            _check(f"{name} of latent attention", getattr(facts.latent, name), _LIMITS["hidden_size"])
    if any(layer.has_attention for layer in facts.layers):
        _check_attention(facts)


def _check_attention(facts: ModelConfig) -> None:
    for name, limit in _OF_ATTENTION.items():
        _check(name, getattr(facts, name), limit)
    if facts.head_dim % 2 or facts.num_heads % facts.num_kv_heads:
        raise ModelError(
            f"The model's config is impossible: {facts.num_heads} attention heads of size {facts.head_dim} share "
            f"{facts.num_kv_heads} KV heads; the size must be even, and the number of heads divisible by that of KV heads."
        )
    for window in facts.windows:
        if window is not None and window < 1:
            raise ModelError(
                f"The model's config is impossible: a window of {str(window)[:40]} tokens; it must be at least 1, or null for "
                "no window."
            )
    for rope in facts.ropes:
        if rope is not None and (rope.dim % 2 or not 0 < rope.dim <= facts.head_dim):
            raise ModelError(
                f"The model's config is impossible: rotary embeddings of {rope.dim} dimensions in heads of {facts.head_dim}"
                " (partial_rotary_factor); the number must be even, and not larger than the heads."
            )


def _check_state(state: State) -> None:
    for name, limit in _OF_STATES.items():
        if (value := getattr(state, name, None)) is not None:
            _check(f"{name} of states", value, limit)
    if not 1 < state.kernel <= _MAX_KERNEL:
        raise ModelError(f"The model's config is impossible: a convolution of {state.kernel} tokens, not 2 to {_MAX_KERNEL}.")
    if isinstance(state, Mamba1):
        _check("intermediate_size of states", state.size, _MAX_INTERMEDIATE_SIZE)
    if isinstance(state, Mamba2) and state.num_heads % state.num_groups:
        raise ModelError(
            f"The model's config is impossible: {state.num_heads} state heads cannot form {state.num_groups} equal groups."
        )
    if isinstance(state, GatedDeltaRule) and state.num_value_heads % state.num_key_heads:
        raise ModelError(
            f"The model's config is impossible: {state.num_value_heads} value heads cannot share "
            f"{state.num_key_heads} key heads equally."
        )


def _check_experts(experts: Experts) -> None:
    _check("num_experts", experts.num_experts, _MAX_EXPERTS)
    _check("n_group", experts.num_groups, experts.num_experts)
    _check("topk_group", experts.num_chosen_groups, experts.num_groups)
    in_group, rest = divmod(experts.num_experts, experts.num_groups)
    if rest or (experts.router == "grouped_sigmoid" and in_group < _SCORED_OF_A_GROUP):
        raise ModelError(
            f"The model's config is impossible: n_group {experts.num_groups} does not fit {experts.num_experts} experts."
        )
    _check("num_experts_per_tok", experts.num_chosen, in_group * experts.num_chosen_groups)
    if experts.router == "sigmoid_input":
        _check("num_experts_per_tok", experts.num_chosen, 1)
    _check("moe_intermediate_size", experts.intermediate_size, _MAX_INTERMEDIATE_SIZE)


def _check(name: str, value: int, limit: int) -> None:
    if not 0 < value <= limit:
        raise ModelError(f"The model's config is impossible: {name} is {str(value)[:40]}, it must be 1 to {limit}.")
