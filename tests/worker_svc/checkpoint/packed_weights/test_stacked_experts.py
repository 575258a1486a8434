"""Quantized experts of families that have all experts of a layer in one tensor in floats, on the CPU device.

Granite's stay one stack in quantized checkpoints; those of Llama 4 and gpt-oss are written one by one.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs

from tests.worker_svc.checkpoint.packed_weights.whole_models import FORMATS, Add
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.native.test_gguf import PROMPT, loaded, logprobs
from tests.worker_svc.quantization.checkpoints import Checkpoint
from tetrad.services.errors import ModelError

Tensors = dict[str, torch.Tensor]
CASES = [
    ("granite_moe", "int4 with zeros"),
    ("granite_moe", "fp8 of rows"),
    ("granite_hybrid", "int4"),
    ("llama4", "gptq"),
    ("llama4", "int4"),
    ("gpt_oss", "int8"),
]


def write_model(directory: Path, family: str, form: str) -> tuple[Path, Path]:
    """Return the directories of a tiny model whose experts alone are quantized, and of its twin in floats."""
    save_family(directory, family)
    checkpoint, add = FORMATS[form][0](), FORMATS[form][1]
    floats = load_file(directory / "model.safetensors")
    packed, dequantized = WRITERS[family](floats, checkpoint, add)
    config = json.loads((directory / "config.json").read_text())
    for path, tensors, changes in (
        (directory / "quantized", floats | packed, {"quantization_config": checkpoint.quantization}),
        (directory / "floats", floats | dequantized, {}),
    ):
        path.mkdir()
        (path / "config.json").write_text(json.dumps(config | changes))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    return directory / "quantized", directory / "floats"


def taken(floats: Tensors, *ends: str) -> list[tuple[str, torch.Tensor]]:
    """Take the tensors whose names end so."""
    return [(name, floats.pop(name)) for name in sorted(floats) if name.endswith(ends)]


def quantized(checkpoint: Checkpoint, add: Add, name: str, rows: int, columns: int) -> torch.Tensor:
    add(checkpoint, name, rows, columns)
    return torch.from_numpy(np.asarray(checkpoint.weights[name])).float()


def write_stacks(floats: Tensors, checkpoint: Checkpoint, add: Add) -> tuple[Tensors, Tensors]:
    """Granite: each part of the experts' matrices in one tensor, as llm-compressor saves them."""
    packed, dequantized = Tensors(), Tensors()
    for name, stack in taken(floats, "block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"):
        stem, (experts, rows, columns) = name.removesuffix(".weight"), stack.shape
        dequantized[name] = torch.stack(
            [quantized(checkpoint, add, f"{stem}.{expert}", rows, columns) for expert in range(experts)]
        )
        for part in [key.removeprefix(f"{stem}.0.") for key in checkpoint.tensors if key.startswith(f"{stem}.0.")]:
            packed[f"{stem}.{part}"] = torch.stack([checkpoint.tensors[f"{stem}.{e}.{part}"] for e in range(experts)])
        if f"{stem}.weight_shape" in packed:
            packed[f"{stem}.weight_shape"] = torch.tensor([experts * rows, columns])
    return packed, dequantized


def write_one_by_one(floats: Tensors, checkpoint: Checkpoint, add: Add) -> tuple[Tensors, Tensors]:
    """Llama 4: gate, up and down of each expert, with a row for each output."""
    dequantized = Tensors()
    for name, stack in taken(floats, "experts.gate_up_proj"):
        experts, columns, rows = stack.shape
        stem = name.removesuffix(".gate_up_proj")
        gates, ups = (
            [quantized(checkpoint, add, f"{stem}.{e}.{part}_proj", rows // 2, columns) for e in range(experts)]
            for part in ("gate", "up")
        )
        dequantized[name] = torch.stack([torch.cat([gate, up]).T for gate, up in zip(gates, ups, strict=True)])
    for name, stack in taken(floats, "experts.down_proj"):
        experts, columns, rows = stack.shape
        stem = name.removesuffix(".down_proj")
        downs = [quantized(checkpoint, add, f"{stem}.{e}.down_proj", rows, columns) for e in range(experts)]
        dequantized[name] = torch.stack([down.T for down in downs])
    return checkpoint.tensors, dequantized


def write_with_biases(floats: Tensors, checkpoint: Checkpoint, add: Add) -> tuple[Tensors, Tensors]:
    """gpt-oss: the same, with biases; in floats, columns of gate and up take turns."""
    biases = {name: floats[name] for name in floats if name.endswith(("gate_up_proj_bias", "down_proj_bias"))}
    packed, dequantized = write_one_by_one(floats, checkpoint, add)
    for name, stack in dequantized.items():
        if name.endswith("gate_up_proj"):
            gates, ups = stack.chunk(2, 2)
            dequantized[name] = torch.stack([gates, ups], 3).flatten(2)
    for name, bias in biases.items():
        del floats[name]
        stem = name.rpartition(".")[0]
        parts = {"gate": bias[:, ::2], "up": bias[:, 1::2]} if "gate_up" in name else {"down": bias}
        packed |= {f"{stem}.{e}.{part}_proj.bias": b[e] for part, b in parts.items() for e in range(len(bias))}
    return packed, dequantized | biases


WRITERS: dict[str, Callable[[Tensors, Checkpoint, Add], tuple[Tensors, Tensors]]] = {
    "granite_moe": write_stacks,
    "granite_hybrid": write_stacks,
    "llama4": write_one_by_one,
    "gpt_oss": write_with_biases,
}


@pytest.mark.parametrize(("family", "form"), CASES)
def test_a_family_is_what_it_is_dequantized(family, form, tmp_path, make_driver):
    """Exactly in float32, and on quantized weights as near as rounded activations are."""
    packed, floats = write_model(tmp_path, family, form)
    expected = logprobs(loaded(floats, "torch"), make_driver)

    found = logprobs(loaded(packed, "auto"), make_driver)

    assert np.abs(found - expected).mean() < 0.1 * expected.std()
    np.testing.assert_allclose(logprobs(loaded(packed, "torch"), make_driver), expected, atol=1e-4)


def test_a_stack_stays_quantized(tmp_path):
    packed, floats = write_model(tmp_path, "granite_moe", "int4")

    size = loaded(packed, "native").info.weights_size_bytes

    assert size < 0.5 * loaded(floats, "native").info.weights_size_bytes


@pytest.mark.parametrize(("family", "form"), [("granite_hybrid", "int4"), ("llama4", "gptq")])
def test_experts_stay_quantized_where_torch_runs_the_rest(family, form, tmp_path):
    packed, floats = write_model(tmp_path, family, form)

    model = loaded(packed, "auto")

    in_floats = loaded(floats, "auto").info.weights_size_bytes
    experts = sum(
        tensor.numel()
        for name, tensor in load_file(floats / "model.safetensors").items()
        if ".experts." in name or ("_linear.weight" in name and "block_sparse_moe" in name)
    )
    assert model.info.weights_size_bytes < in_floats - experts * (4 - (1 / 2 + 8 / 32))


def test_tokens_of_quantized_experts_do_not_depend_on_the_batch(tmp_path, make_driver):
    packed, _ = write_model(tmp_path, "llama4", "int4")
    driver, prompts = make_driver(loaded(packed, "auto")), [PROMPT[:length] for length in (3, 17, 40)]
    for handle, prompt in enumerate(prompts):
        driver.add(handle, prompt)
    together = driver.generate(8)

    for handle, prompt in enumerate(prompts):
        alone = make_driver(loaded(packed, "auto"))
        alone.add(handle, prompt)
        assert alone.generate(8) == {handle: together[handle]}


def test_the_log_says_what_dequantized_weights_take(tmp_path):
    packed, _ = write_model(tmp_path, "llama4", "int4")

    with capture_logs() as lines:
        model = loaded(packed, "torch")

    [line] = [line for line in lines if line["event"] == "weights.dequantized"]
    assert line["size_bytes"] == model.info.weights_size_bytes == 4 * model.info.num_parameters
    assert line["stored_bytes"] == pytest.approx((packed / "model.safetensors").stat().st_size, rel=0.06)


@pytest.mark.parametrize(
    ("part", "tensor", "said"),
    [
        ("weight_scale", torch.ones(3, 192, 2), "input_linear.weight_scale has shape .* asks for 4 experts"),
        ("weight_scale", torch.ones(4, 7, 2), "weight_scale has 7 rows for 192"),
        ("weight_packed", torch.zeros(4, 0, 8, dtype=torch.int32), "asks for 4 experts"),
        ("weight_shape", torch.tensor([5, 7]), "does not hold"),
    ],
    ids=str,
)
def test_parts_that_contradict_each_other_are_one_line(part, tensor, said, tmp_path):
    packed, _ = write_model(tmp_path, "granite_moe", "int4")
    tensors = load_file(packed / "model.safetensors")
    tensors[f"model.layers.1.block_sparse_moe.input_linear.{part}"] = tensor
    save_file(tensors, packed / "model.safetensors")

    with pytest.raises(ModelError, match=said) as caught:
        loaded(packed, "native")

    assert "\n" not in caught.value.message
