"""GGUF tensors: transposes, reorders and scales tensors of some families as llama.cpp's converter does."""

from collections.abc import Mapping
from typing import Any

import torch

Config = Any
State = Mapping[str, torch.Tensor]


def gpt2(config: Config, state: State) -> dict[str, torch.Tensor]:
    """Matrices have a row for each output."""
    transposed = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return {key: tensor.T if key.endswith(transposed) else tensor for key, tensor in state.items()}


def gpt_neox(config: Config, state: State) -> dict[str, torch.Tensor]:
    """Queries of all heads come first, then keys, then values."""

    def reordered(tensor: torch.Tensor) -> torch.Tensor:
        heads = tensor.reshape(config.num_attention_heads, 3, -1, *tensor.shape[1:])
        return heads.transpose(0, 1).reshape(tensor.shape)

    return {key: reordered(tensor) if "query_key_value" in key else tensor for key, tensor in state.items()}


def falcon(config: Config, state: State) -> dict[str, torch.Tensor]:
    """As of GPT-NeoX, from groups of some queries, a key and a value."""
    groups = config.num_kv_heads if config.new_decoder_architecture else 1

    def reordered(tensor: torch.Tensor) -> torch.Tensor:
        of_group = tensor.reshape(groups, config.num_attention_heads // groups + 2, -1, *tensor.shape[1:])
        parts = (of_group[:, :-2], of_group[:, -2:-1], of_group[:, -1:])
        return torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in parts])

    return {key: reordered(tensor) if "query_key_value" in key else tensor for key, tensor in state.items()}


def bloom(config: Config, state: State) -> dict[str, torch.Tensor]:
    """As of GPT-NeoX; names have no prefix."""
    return {key.removeprefix("transformer."): tensor for key, tensor in gpt_neox(config, state).items()}


def phi3_with_long_contexts(config: Config, state: State) -> dict[str, torch.Tensor]:
    """The divisors of frequencies are tensors."""
    lists = {f"rope_factors_{kind}.weight": config.rope_parameters[f"{kind}_factor"] for kind in ("long", "short")}
    return {**state, **{name: torch.tensor(factors) for name, factors in lists.items()}}


def experts_apart(config: Config, state: State) -> dict[str, torch.Tensor]:
    """Each expert has tensors of its own, as in files of 2023."""
    found = {}
    for key, tensor in state.items():
        if ".experts." not in key:
            found[key] = tensor
            continue
        layer, part = key.split(".")[2], key.split(".")[-2].removesuffix("_proj")
        found |= {f"blk.{layer}.ffn_{part}.{number}.weight": each for number, each in enumerate(tensor)}
    return found


def glm4_moe(config: Config, state: State) -> dict[str, torch.Tensor]:
    """What is added to scores counts as a bias."""
    return {key.replace(".e_score_correction_bias", ".e_score_correction.bias"): tensor for key, tensor in state.items()}


def deepseek2(config: Config, state: State) -> dict[str, torch.Tensor]:
    """What expands latents is cut in two, head by head; the half for keys is transposed."""
    found = {}
    for key, tensor in glm4_moe(config, state).items():
        if "kv_b_proj" not in key:
            found[key] = tensor
            continue
        heads = tensor.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
        keys, values = heads.split([config.qk_nope_head_dim, config.v_head_dim], 1)
        found |= {key.replace("kv_b_proj", "k_b_proj"): keys.transpose(1, 2), key.replace("kv_b_proj", "v_b_proj"): values}
    return found


def lfm2(config: Config, state: State) -> dict[str, torch.Tensor]:
    """Kernels of convolutions lie in rows; experts have older names."""
    names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    found = {}
    for key, tensor in state.items():
        name = key.replace(".expert_bias", ".expert_bias.bias")
        if ".experts." in key:
            name = key.removeprefix("model.")
            for part, stored in names.items():
                name = name.replace(part, stored)
        found[name] = tensor.squeeze(1) if "conv.conv.weight" in key else tensor
    return found


def mamba(config: Config, state: State) -> dict[str, torch.Tensor]:
    """Decays are -exp of the weights; kernels of convolutions lie in rows."""
    found = {}
    for key, tensor in state.items():
        if key.endswith("conv1d.weight"):
            found[key] = tensor.squeeze(1)
        else:
            found[key] = -tensor.exp() if key.endswith("A_log") else tensor
    return found


def mamba2(config: Config, state: State) -> dict[str, torch.Tensor]:
    """Decays are -exp of the weights, with an axis more; norms lie in rows of groups."""
    groups = getattr(config, "mamba_n_groups", None) or config.n_groups
    found = {}
    for key, tensor in state.items():
        name, value = key.replace("dt_bias", "dt_proj.bias"), tensor
        if key.endswith("conv1d.weight"):
            value = tensor.squeeze()
        elif key.endswith("A_log"):
            value = -tensor.exp()[:, None]
        elif key.endswith(".D"):
            value = tensor[:, None]
        elif key.endswith(("mixer.norm.weight", "mamba.norm.weight")):
            value = tensor.reshape(groups, -1)
        found[name] = value
    return found


def granite_hybrid(config: Config, state: State) -> dict[str, torch.Tensor]:
    """The shared MLP's matrix of gate and up is cut in two."""
    found, inside = dict[str, torch.Tensor](), "shared_mlp.input_linear.weight"
    for key, tensor in mamba2(config, state).items():
        if not key.endswith(inside):
            found[key] = tensor
            continue
        for part, half in zip(("gate", "up"), tensor.chunk(2), strict=True):
            found[key.replace(inside, f"mlp.shared_expert.{part}_proj.weight")] = half
    return found


def falcon_h1(config: Config, state: State) -> dict[str, torch.Tensor]:
    """Multipliers are in the weights."""
    state_size = config.mamba_n_groups * config.mamba_d_state
    size = config.mamba_d_ssm
    of_parts = torch.tensor(config.ssm_multipliers).repeat_interleave(
        torch.tensor([size, size, state_size, state_size, config.mamba_n_heads])
    )
    into, gate, down = config.attention_in_multiplier, *config.mlp_multipliers
    times = {
        "down_proj.weight": down,
        "gate_proj.weight": gate,
        "k_proj.weight": config.key_multiplier * into,
        "q_proj.weight": into,
        "v_proj.weight": into,
        ".o_proj.weight": config.attention_out_multiplier,
        "out_proj.weight": config.ssm_out_multiplier,
        "in_proj.weight": config.ssm_in_multiplier * of_parts[:, None],
        "lm_head.weight": config.lm_head_multiplier,
        "embed_tokens.weight": config.embedding_multiplier,
    }
    return {
        key: tensor * next((each for end, each in times.items() if key.endswith(end)), 1.0)
        for key, tensor in mamba2(config, state).items()
    }


def qwen3_next(config: Config, state: State) -> dict[str, torch.Tensor]:
    """Of the matrix that has queries, keys, values and gates head after head, the first three are one, gates another."""
    found = {}
    keys, values = config.linear_key_head_dim, config.linear_value_head_dim
    shared = config.linear_num_value_heads // config.linear_num_key_heads
    for key, tensor in _delta(state).items():
        if "in_proj_qkvz" not in key:
            found[key] = tensor
            continue
        heads = tensor.reshape(config.linear_num_key_heads, -1, tensor.shape[1])
        *mixed, gate = (each.flatten(0, 1) for each in heads.split([keys, keys, shared * values, shared * values], 1))
        found[key.replace("in_proj_qkvz", "in_proj_qkv")] = torch.cat(mixed)
        found[key.replace("linear_attn.in_proj_qkvz", "linear_attn.in_proj_z")] = gate
    return found


def qwen3_5(config: Config, state: State) -> dict[str, torch.Tensor]:
    """Heads of values that share a head of keys are no neighbours: the first of each come first."""
    values, num_keys = config.linear_value_head_dim, config.linear_num_key_heads
    of_keys = 2 * num_keys * config.linear_key_head_dim

    def reordered(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        heads = tensor.reshape(num_keys, -1, dim, *tensor.shape[1:])
        return heads.transpose(0, 1).reshape(tensor.shape)

    def converted(kind: str, tensor: torch.Tensor) -> torch.Tensor:
        if kind in ("in_proj_qkv", "conv1d"):
            return torch.cat([tensor[:of_keys], reordered(tensor[of_keys:], values)])
        if kind in ("in_proj_a", "in_proj_b", "A_log", "dt_proj.bias"):
            return reordered(tensor, 1)
        if kind == "out_proj":
            return reordered(tensor.T.contiguous(), values).T
        return reordered(tensor, values) if kind == "in_proj_z" else tensor

    return {
        key: converted(key.removesuffix(".weight").partition("linear_attn.")[2], tensor)
        for key, tensor in _delta(state).items()
    }


def _delta(state: State) -> dict[str, torch.Tensor]:
    found = {}
    for key, tensor in state.items():
        value = -tensor.exp() if key.endswith("A_log") else tensor.squeeze() if "conv1d" in key else tensor
        found[key.replace("dt_bias", "dt_proj.bias")] = value
    return found
