"""Whole models of quantized checkpoints: they generate as the same weights in floats, and take less memory."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.worker_svc.conftest import Driver, tiny_config
from tests.worker_svc.cuda.conftest import SMALL
from tests.worker_svc.quantization.checkpoints import (
    Checkpoint,
    add_awq,
    add_fp8,
    add_gptq,
    awq_checkpoint,
    drawn,
    gptq_checkpoint,
)
from tetrad.worker_svc.core.plan import SamplingSpec

HIDDEN, MIDDLE, QUERIES, KEYS = 64, 96, 64, 32
CONFIG = tiny_config(
    "Qwen2ForCausalLM", num_hidden_layers=1, hidden_size=HIDDEN, intermediate_size=MIDDLE, num_attention_heads=4
)
LAYER = "model.layers.0"
MATRICES = {
    "self_attn.q_proj": (QUERIES, HIDDEN),
    "self_attn.k_proj": (KEYS, HIDDEN),
    "self_attn.v_proj": (KEYS, HIDDEN),
    "self_attn.o_proj": (HIDDEN, QUERIES),
    "mlp.gate_proj": (MIDDLE, HIDDEN),
    "mlp.up_proj": (MIDDLE, HIDDEN),
    "mlp.down_proj": (HIDDEN, MIDDLE),
}
FLOATS = {
    "model.embed_tokens.weight": (320, HIDDEN),
    "lm_head.weight": (320, HIDDEN),
    "model.norm.weight": (HIDDEN,),
    f"{LAYER}.input_layernorm.weight": (HIDDEN,),
    f"{LAYER}.post_attention_layernorm.weight": (HIDDEN,),
    f"{LAYER}.self_attn.q_proj.bias": (QUERIES,),
    f"{LAYER}.self_attn.k_proj.bias": (KEYS,),
    f"{LAYER}.self_attn.v_proj.bias": (KEYS,),
}
LOGPROBS = SamplingSpec(temperature=0.0, num_logprobs=2)
# At most 16 tokens a step: fp8 quantizes the activations of larger ones.
PROMPTS = [[5, 9, 200], list(range(40, 51))]
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def add_blocks(checkpoint: Checkpoint, name: str, rows: int, columns: int) -> None:
    add_fp8(checkpoint, name, rows, columns, torch.tensor([[0.002]]), "weight_scale_inv")


CHECKPOINTS: dict[str, tuple[Checkpoint, Callable[..., None]]] = {
    "awq": (awq_checkpoint(32), partial(add_awq, group=32)),
    "gptq out of order": (gptq_checkpoint(32, desc_act=True), partial(add_gptq, group=32, shuffle="order")),
    "fp8 blocks": (Checkpoint(BLOCKS), add_blocks),
}


def write(directory: Path, tensors: dict[str, torch.Tensor], config: dict[str, object]) -> Path:
    directory.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def generated(model) -> Driver:
    driver = Driver(model.make_runner(SMALL), SMALL)
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt, LOGPROBS)
    driver.generate(3)
    return driver


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_quantized_checkpoint_generates_what_its_weights_do_in_floats(kind, tmp_path, load_cuda):
    checkpoint, add = CHECKPOINTS[kind]
    for name, (rows, columns) in MATRICES.items():
        add(checkpoint, f"{LAYER}.{name}", rows, columns)
    floats = {name: torch.from_numpy(drawn(name).normal(size=shape)).float() for name, shape in FLOATS.items()}
    in_floats = floats | {f"{name}.weight": torch.from_numpy(value).float() for name, value in checkpoint.weights.items()}
    quantization = {"quantization_config": checkpoint.quantization}
    quantized = load_cuda(write(tmp_path / "quantized", floats | checkpoint.tensors, CONFIG | quantization))
    plain = load_cuda(write(tmp_path / "plain", in_floats, CONFIG))

    found, expected = generated(quantized), generated(plain)

    for handle, request in expected.requests.items():
        assert found.requests[handle].output == request.output
        for (ids, values, _), (wanted_ids, wanted, _) in zip(found.requests[handle].logprobs, request.logprobs, strict=True):
            assert ids.tolist() == wanted_ids.tolist()
            np.testing.assert_allclose(values, wanted, atol=2e-3)
    assert quantized.info.weights_size_bytes < plain.info.weights_size_bytes
    assert quantized.info.num_parameters == plain.info.num_parameters


@pytest.mark.parametrize("kind", ["awq", "gptq"])
def test_an_output_layer_that_is_quantized_too_is_read(kind, tmp_path, load, load_cuda):
    """As in checkpoints whose quantization_config says `lm_head: true`."""
    checkpoint, add = (awq_checkpoint(32), add_awq) if kind == "awq" else (gptq_checkpoint(32, lm_head=True), add_gptq)
    names = {f"{LAYER}.{name}": shape for name, shape in MATRICES.items()} | {"lm_head": (320, HIDDEN)}
    for name, (rows, columns) in names.items():
        add(checkpoint, name, rows, columns, 32)
    floats = {name: torch.from_numpy(drawn(name).normal(size=shape)).float() for name, shape in FLOATS.items()}
    del floats["lm_head.weight"]
    config = CONFIG | {"quantization_config": checkpoint.quantization}
    path = write(tmp_path / "quantized", floats | checkpoint.tensors, config)

    wanted, found = (generated(device(path)) for device in (load, load_cuda))

    for handle, request in wanted.requests.items():
        assert found.requests[handle].output == request.output


def test_a_model_in_floats_is_quantized_on_request(tiny_path, load_cuda, tiny_cuda):
    quantized = load_cuda(tiny_path, quantization="int8")

    found, exact = generated(quantized), generated(tiny_cuda)

    # Of the first tokens: those behind them may follow another one.
    first = [[each.requests[handle].logprobs[0][1][0] for handle in range(len(PROMPTS))] for each in (found, exact)]
    np.testing.assert_allclose(*first, atol=0.3)
    kept = 2 * 320 * 48 * 4  # embedding and output layer
    assert quantized.info.weights_size_bytes - kept < (tiny_cuda.info.weights_size_bytes - kept) / 2
