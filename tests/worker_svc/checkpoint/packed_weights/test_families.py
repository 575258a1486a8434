"""Quantized checkpoints of families with experts, fused or reordered matrices, latents and states, on the CPU device.

All matrices of layers but routers and small ones are quantized, as in published checkpoints; the twin has the same in floats.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.worker_svc.checkpoint.packed_weights.whole_models import FORMATS, Add
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.native.test_gguf import loaded, logprobs
from tests.worker_svc.quantization.checkpoints import Checkpoint, add_awq, awq_checkpoint
from tetrad.services.errors import ModelError

FAMILIES = ["qwen3_moe", "mixtral", "phi3", "glm", "gpt2", "deepseek_v3", "qwen3_next", "jamba"]
FORMS = {
    "awq": (lambda: awq_checkpoint(32), lambda *args: add_awq(*args, 32)),
    **{name: FORMATS[name] for name in ("gptq", "fp8 of blocks")},
}
KEPT = (
    "embed",
    "lm_head",
    ".gate.",
    "router",
    "shared_expert_gate",
    "norm",
    "wte",
    "wpe",
    "in_proj_ba",
    "in_proj_a",
    "in_proj_b",
)
"""Parts of the names of matrices that stay in floats."""


def write_model(directory: Path, family: str, checkpoint: Checkpoint, add: Add) -> tuple[Path, Path]:
    """Return the directories of a tiny model whose matrices `add` has quantized, and of its twin in floats."""
    save_family(directory, family)
    config = json.loads((directory / "config.json").read_text())
    floats = load_file(directory / "model.safetensors")
    for name in floats:
        if "norm" in name or ".ln_" in name:
            floats[name] *= 0.2  # with random weights of this size, attention would be all or nothing
    stems = [name.removesuffix(".weight") for name, tensor in floats.items() if is_quantized(name, tensor)]
    assert stems
    for stem in stems:
        add(checkpoint, stem, *oriented(family, floats.pop(f"{stem}.weight")).shape)
    weights = {stem: torch.from_numpy(np.asarray(checkpoint.weights[stem])).float() for stem in stems}
    dequantized = {f"{stem}.weight": oriented(family, weight) for stem, weight in weights.items()}
    for path, tensors, changes in (
        (directory / "quantized", floats | checkpoint.tensors, {"quantization_config": checkpoint.quantization}),
        (directory / "floats", floats | dequantized, {}),
    ):
        path.mkdir()
        (path / "config.json").write_text(json.dumps(config | changes))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    return directory / "quantized", directory / "floats"


def oriented(family: str, weight: torch.Tensor) -> torch.Tensor:
    """Return a matrix as the family has it in floats; quantized ones always have a row for each output."""
    return weight.T if family == "gpt2" else weight


def is_quantized(name: str, tensor: torch.Tensor) -> bool:
    is_matrix = name.endswith(".weight") and tensor.dim() == 2 and not any(part in name for part in KEPT)
    return is_matrix and tensor.shape[1] % 32 == 0 and tensor.shape[0] % 8 == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_quantized_family_is_what_it_is_dequantized(family, form, tmp_path, make_driver):
    """Exactly in float32, and on quantized weights as near as rounded activations are."""
    new, add = FORMS[form]
    quantized, floats = write_model(tmp_path, family, new(), add)
    expected = logprobs(loaded(floats, "torch"), make_driver)

    found = logprobs(loaded(quantized, "auto"), make_driver)

    assert np.abs(found - expected).mean() < 0.1 * expected.std()
    np.testing.assert_allclose(logprobs(loaded(quantized, "auto", dtype="float32"), make_driver), expected, atol=1e-3)


def test_experts_stay_quantized(tmp_path):
    quantized, floats = write_model(tmp_path, "qwen3_moe", awq_checkpoint(32), lambda *args: add_awq(*args, 32))

    size = loaded(quantized, "native").info.weights_size_bytes

    assert size < 0.45 * loaded(floats, "native").info.weights_size_bytes


def test_experts_of_one_tensor_are_refused_in_one_line(tmp_path):
    quantized, _ = write_model(tmp_path, "granite_moe", *(FORMS["gptq"][0](), FORMS["gptq"][1]))
    tensors = load_file(quantized / "model.safetensors")
    for name in [name for name in tensors if "input_linear" in name]:
        tensors[f"{name.removesuffix('.weight')}.qweight"] = tensors.pop(name)[0].int()
    save_file(tensors, quantized / "model.safetensors")

    with pytest.raises(ModelError, match=r"input_linear\.qzeros, which its quantization needs") as caught:
        loaded(quantized, "auto")

    assert "\n" not in caught.value.message
