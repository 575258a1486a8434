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
