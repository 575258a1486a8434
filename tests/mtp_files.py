"""A tiny model with an MTP layer behind three others, in the published layout, with random weights."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.worker_svc.conftest import save_tiny, tiny_config
from tests.worker_svc.families.tiny_models import ABSENT, ATTENTION, DEEPSEEK, DELTA_EXPERTS, LATENT, LINEAR

_HIDDEN, _VOCAB = 64, 320
_SIZES = {"hidden_size": _HIDDEN, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2}
_GROUPS = {"n_group": 4, "topk_group": 2, **DEEPSEEK}
_LAYER_TYPES = [LINEAR, ATTENTION, LINEAR, ATTENTION]
KINDS = {
    "glm": ("Glm4MoeForCausalLM", {"model_type": "glm4_moe", "use_qk_norm": True, **_GROUPS}),
    "deepseek": ("DeepseekV3ForCausalLM", {"model_type": "deepseek_v3", **LATENT, **_GROUPS}),
}


QWEN = {
    "qwen3_next": ("Qwen3NextForCausalLM", {"model_type": "qwen3_next", **DELTA_EXPERTS, "layer_types": _LAYER_TYPES}),
    "qwen3_5_moe": ("Qwen3_5MoeForCausalLM", {"model_type": "qwen3_5_moe_text", **DELTA_EXPERTS, "layer_types": _LAYER_TYPES}),
}
"""Models with states, and layers under mtp.*."""
_STORED = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "shared_head.norm": "norm"}


def save_qwen_mtp(directory: Path, kind: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Write the model with its MTP layer under mtp.*; see save_mtp. Norms multiply by 1 + the stored weights."""
    architecture, changes = QWEN[kind]
    model = save_tiny(directory, tiny_config(architecture, **(_SIZES | changes)))
    generator = torch.Generator().manual_seed(5)
    added = {"eh_proj.weight": torch.randn(_HIDDEN, 2 * _HIDDEN, generator=generator) * 0.2}
    norms = [f"{name}.weight" for name in _STORED if name != "eh_proj"]
    added |= {name: 0.1 * torch.randn(_HIDDEN, generator=generator) for name in norms}
    stored = load_file(directory / "model.safetensors")
    last = "model.layers.3."
    moved = {name.replace(last, "mtp.layers.0."): stored.pop(name) for name in list(stored) if name.startswith(last)}
    moved |= {f"mtp.{_STORED[name.removesuffix('.weight')]}.weight": tensor for name, tensor in added.items()}
    save_file(stored | moved, directory / "model.safetensors")
    saved = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(saved | {"num_hidden_layers": 3, "layer_types": _LAYER_TYPES[:3]}))
    own = added | {name: 1 + added[name] for name in norms}
    head, table = model.lm_head.weight.detach(), model.model.embed_tokens.weight.detach()
    return model, own | {"shared_head.head.weight": head, "embed_tokens.weight": table}


def save_mtp(directory: Path, kind: str, **sizes: object) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Write the model, its config changed; return transformers' own, whose last layer is the MTP layer's, and what that layer
    has besides.
    """
    architecture, changes = KINDS[kind]
    config = tiny_config(architecture, **{**_SIZES, "num_hidden_layers": 4, **changes, **sizes})
    model = save_tiny(directory, {name: value for name, value in config.items() if value is not ABSENT})
    generator = torch.Generator().manual_seed(5)
    shapes = {"eh_proj": (_HIDDEN, 2 * _HIDDEN), "embed_tokens": (_VOCAB, _HIDDEN), "shared_head.head": (_VOCAB, _HIDDEN)}
    own = {f"{name}.weight": torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()}
    norms = ("enorm", "hnorm", "shared_head.norm")
    own |= {f"{name}.weight": 1 + 0.1 * torch.randn(_HIDDEN, generator=generator) for name in norms}
    stored = load_file(directory / "model.safetensors")
    save_file(stored | {f"model.layers.3.{name}": tensor for name, tensor in own.items()}, directory / "model.safetensors")
    saved = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(saved | {"num_hidden_layers": 3, "num_nextn_predict_layers": 1}))
    return model, own
