"""Adapters as PEFT writes them: unusual values of adapter_config.json."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tetrad.services.errors import ModelError, NotFound
from tetrad.worker_svc.checkpoint.lora_files import read_lora
from tetrad.worker_svc.core.lora import LoraSite
from tetrad.worker_svc.model_facts.tensor_names import CANONICAL, TEXT_PARTS, Stored, TensorNames

MODULE = "model.layers.0.self_attn.q_proj"
SITES = {MODULE: LoraSite(4, 6)}
GPT_J = TensorNames(
    layers="transformer.h",
    in_layer={"self_attn.q_proj": Stored("attn.q_proj")},
    in_model={"model.embed_tokens": Stored("transformer.wte")},
)


@pytest.fixture
def read(tmp_path):
    """Writes an adapter of rank 2 for one module, and reads it."""

    def write_and_read(**config):
        values = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], **config}
        (tmp_path / "adapter_config.json").write_text(json.dumps(values))
        name = f"base_model.model.{MODULE}"
        tensors = {f"{name}.lora_A.weight": torch.ones(2, 4), f"{name}.lora_B.weight": torch.ones(6, 2)}
        save_file(tensors, tmp_path / "adapter_model.safetensors")
        return read_lora(tmp_path, SITES, CANONICAL, max_rank=8)

    return write_and_read


@pytest.mark.parametrize(
    ("names", "module"),
    [
        (CANONICAL, MODULE),
        (CANONICAL, "layers.0.self_attn.q_proj"),
        (GPT_J, "transformer.h.0.attn.q_proj"),
        (GPT_J, "h.0.attn.q_proj"),
    ],
)
def test_an_adapter_may_be_of_a_model_without_an_output_layer(names, module, tmp_path):
    """transformers loads such a model without the first part of all names."""
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    tensors = {"lora_A": torch.ones(2, 4), "lora_B": torch.ones(6, 2)}
    save_file(
        {f"base_model.model.{module}.{kind}.weight": tensor for kind, tensor in tensors.items()},
        tmp_path / "adapter_model.safetensors",
    )

    assert set(read_lora(tmp_path, SITES, names, max_rank=8).pairs) == {MODULE}


@pytest.mark.parametrize(
    "prefix", ["model.language_model.", "language_model.model.", "model.text_model.", "model.", "language_model."]
)
def test_an_adapter_may_be_of_a_model_that_reads_images(prefix, tmp_path):
    """The names of its text model have a part before them, which depends on the release of transformers."""
    layer = f"{prefix}{MODULE.removeprefix('model.')}"
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "target_modules": ["q_proj"], "rank_pattern": {layer: 2}}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    tensors = {f"{layer}.lora_A": torch.ones(2, 4), f"{layer}.lora_B": torch.ones(6, 2)}
    tensors |= {"lm_head.lora_A": torch.ones(4, 4), "lm_head.lora_B": torch.ones(9, 4)}
    save_file(
        {f"base_model.model.{name}.weight": tensor for name, tensor in tensors.items()}, tmp_path / "adapter_model.safetensors"
    )

    found = read_lora(tmp_path, SITES | {"lm_head": LoraSite(4, 9)}, TensorNames(text_parts=TEXT_PARTS), max_rank=8).pairs

    assert {name: pair.scale for name, pair in found.items()} == {MODULE: 2, "lm_head": 1}


def test_a_home_of_no_user_has_no_adapter():
    with pytest.raises(NotFound, match="There is no adapter at ~nobody-here/sql"):
        read_lora(Path("~nobody-here/sql"), SITES, CANONICAL, max_rank=8)


def test_an_adapter_of_parameters_needs_no_target_modules(read):
    assert read(target_modules=None, target_parameters=["mlp.experts.gate_up_proj"]).pairs[MODULE].scale == 2


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"rank_pattern": {"*.q_proj": 8}}, "no regular expression"),
        ({"rank_pattern": ["q_proj"]}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": None}}, "alpha_pattern"),
    ],
)
def test_patterns_that_cannot_be_used_are_refused_by_name(config, text, read):
    with pytest.raises(ModelError, match=text):
        read(**config)
