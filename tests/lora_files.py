"""LoRA adapters for tests: random ones in PEFT's files, and models with them merged into their weights."""

import copy
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

DELTA = 0.2
"""Size of a random change beside the weights of tiny models: large enough that tokens differ."""


def save_lora(
    directory: Path,
    model: torch.nn.Module,
    modules: str,
    *,
    rank: int = 8,
    alpha: float = 16,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Write an adapter that changes the modules whose names match `modules` to the end; return its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    ranks: Mapping[str, int] = config.get("rank_pattern", {})
    for name, module in model.named_modules():
        if not re.fullmatch(rf"(.*\.)?({modules})", name) or not hasattr(module, "weight"):
            continue
        its_rank = next((value for key, value in ranks.items() if re.fullmatch(rf"(.*\.)?({key})", name)), rank)
        outputs, inputs = _shape(module)
        is_table = isinstance(module, torch.nn.Embedding)
        a, b = ("lora_embedding_A", "lora_embedding_B") if is_table else ("lora_A.weight", "lora_B.weight")
        for kind, shape in ((a, (its_rank, inputs)), (b, (outputs, its_rank))):
            value = torch.randn(shape, generator=generator) * DELTA / (inputs if kind == a and not is_table else 1) ** 0.5
            tensors[f"base_model.model.{name}.{kind}"] = value.to(dtype)
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": modules, "bias": "none"} | config
    (directory / "adapter_config.json").write_text(json.dumps(fields))
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


EXPERT_PARTS = {"gate_proj": ("gate_up_proj", 0), "up_proj": ("gate_up_proj", 1), "down_proj": ("down_proj", None)}
"""Expert's module -> the parameter of all experts, and which half of its outputs."""


def save_expert_lora(
    directory: Path,
    model: torch.nn.Module,
    *,
    rank: int,
    seed: int,
    renamed: Mapping[str, str] | None = None,
    is_stacked: bool = False,
) -> Path:
    """Write an adapter that changes all experts; return its directory.

    Args:
        directory: where.
        model: whose experts are parameters [experts, outputs, inputs], or transposed.
        rank: of each module.
        seed: of the values.
        renamed: parts of the names of experts' modules -> those that the files have.
        is_stacked: write one pair of tensors for a parameter, as PEFT does for target_parameters; else one for each module.
    """
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for home, module in model.named_modules():
        for depth, (name, (num_experts, outputs, inputs)) in enumerate(_stacks_of(module)):
            pairs = [
                (
                    torch.randn(rank, inputs, generator=generator) * DELTA / inputs**0.5,
                    torch.randn(outputs, rank, generator=generator) * DELTA,
                )
                for _ in range(num_experts)
            ]
            prefix = f"base_model.model.{home}"
            if is_stacked:
                wrapped = prefix if depth else f"{prefix}.base_layer"
                wrapped = prefix if len(_stacks_of(module)) == 1 else wrapped
                tensors[f"{wrapped}.lora_A.weight"] = torch.cat([a for a, _ in pairs])
                tensors[f"{wrapped}.lora_B.weight"] = torch.stack([b for _, b in pairs], -1).flatten(1)
                continue
            for expert, (a, b) in enumerate(pairs):
                for part, (parameter, half) in EXPERT_PARTS.items():
                    if parameter == name:
                        its = f"{prefix}.{expert}.{part}"
                        for old, new in (renamed or {}).items():
                            its = its.replace(old, new)
                        # Gate and up have matrices A of their own.
                        tensors[f"{its}.lora_A.weight"] = a * (1.5 if half else 1.0)
                        tensors[f"{its}.lora_B.weight"] = (b if half is None else b.chunk(2)[half]).contiguous()
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "target_modules": [], "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(fields))
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


def merged_experts(model: torch.nn.Module, directory: Path, renamed: Mapping[str, str] | None = None) -> torch.nn.Module:
    """Return a copy of a model with an adapter of save_expert_lora added to its experts."""
    model = copy.deepcopy(model)
    config = json.loads((directory / "adapter_config.json").read_text())
    scale, tensors = config["lora_alpha"] / config["r"], load_file(directory / "adapter_model.safetensors")
    for home, module in model.named_modules():
        for depth, (name, (num_experts, outputs, inputs)) in enumerate(_stacks_of(module)):
            delta = torch.zeros(num_experts, outputs, inputs)
            wrapped = f"base_model.model.{home}{'' if depth or len(_stacks_of(module)) == 1 else '.base_layer'}"
            if f"{wrapped}.lora_A.weight" in tensors:
                a, b = (tensors[f"{wrapped}.lora_{kind}.weight"] for kind in "AB")
                # As PEFT's ParamWrapper.get_delta_weight reads them.
                a, b = a.reshape(num_experts, -1, inputs), b.reshape(outputs, -1, num_experts)
                delta = torch.einsum("o r e, e r i -> e o i", b, a)
            for expert in range(num_experts):
                for part, (parameter, half) in EXPERT_PARTS.items():
                    its = f"base_model.model.{home}.{expert}.{part}"
                    for old, new in (renamed or {}).items():
                        its = its.replace(old, new)
                    if parameter == name and f"{its}.lora_A.weight" in tensors:
                        rows = delta[expert] if half is None else delta[expert].chunk(2)[half]
                        rows += tensors[f"{its}.lora_B.weight"] @ tensors[f"{its}.lora_A.weight"]
            with torch.no_grad():
                parameter = getattr(module, name)
                parameter += scale * (delta.transpose(1, 2) if getattr(module, "is_transposed", False) else delta)
    return model


def _stacks_of(module: torch.nn.Module) -> list[tuple[str, tuple[int, int, int]]]:
    """Return a module's own parameters of all experts, in the order in which PEFT wraps them: [experts, outputs, inputs]."""
    found = []
    for name, parameter in sorted(module.named_parameters(recurse=False)):
        if parameter.dim() == 3 and name in ("gate_up_proj", "down_proj", "weight"):
            experts, outputs, inputs = parameter.shape
            found.append(
                (name, (experts, inputs, outputs) if getattr(module, "is_transposed", False) else (experts, outputs, inputs))
            )
    return found


def merged(model: torch.nn.Module, directory: Path) -> torch.nn.Module:
    """Return a copy of a model with an adapter added to its weights, as PEFT's merge_and_unload does; ties are cut."""
    model = copy.deepcopy(model)
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is table.weight:
        head.weight = torch.nn.Parameter(table.weight.detach().clone())
    config = json.loads((directory / "adapter_config.json").read_text())
    tensors = load_file(directory / "adapter_model.safetensors")
    modules = dict(model.named_modules())
    for name, a in tensors.items():
        found = re.fullmatch(r"base_model\.model\.(.+)\.lora_(embedding_)?A(\.weight)?", name)
        if found is None:
            continue
        b = tensors[name.replace("lora_A", "lora_B").replace("lora_embedding_A", "lora_embedding_B")]
        module = modules[found[1]]
        alpha = next(
            (value for key, value in config.get("alpha_pattern", {}).items() if re.fullmatch(rf"(.*\.)?({key})", found[1])),
            config["lora_alpha"],
        )
        scale = alpha / (len(a) ** 0.5 if config.get("use_rslora") else len(a))
        delta = scale * (b.float() @ a.float())
        is_transposed = found[2] or type(module).__name__ == "Conv1D"
        with torch.no_grad():
            module.weight += delta.T if is_transposed else delta
    return model


def _shape(module: torch.nn.Module) -> tuple[int, int]:
    """Return outputs and inputs."""
    rows, columns = module.weight.shape
    is_transposed = isinstance(module, torch.nn.Embedding) or type(module).__name__ == "Conv1D"
    return (columns, rows) if is_transposed else (rows, columns)
