"""Families on the CUDA device: through the kernels' program where it computes their traits, else through the torch decoder."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import SMALL, layout_of
from tests.worker_svc.families.tiny_models import save_family
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.cuda.decoder import KernelDecoder
from tetrad.worker_svc.cuda.device.accelerator import HostAccelerator
from tetrad.worker_svc.cuda.torch_decoder import TorchDecoder
from tetrad.worker_svc.devices.cuda import CudaDevice

NUM_TOKENS = 4
PROMPTS = [np.random.default_rng(length).integers(3, 320, length).tolist() for length in (1, 17, 40)]


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("qwen2", KernelDecoder),
        ("gemma2", TorchDecoder),
        ("gemma3", TorchDecoder),
        ("qwen3_moe", TorchDecoder),
        ("gpt_oss", TorchDecoder),
        ("deepseek_v2", TorchDecoder),
        ("deepseek_v3", TorchDecoder),
        ("bloom with 12 heads", TorchDecoder),
        ("mpt with bounds", TorchDecoder),
        ("falcon 7b with biases of scores", TorchDecoder),
    ],
)
def test_a_family_generates_what_transformers_does(name, program, tmp_path, load_cuda):
    """Windows are shorter than two of the prompts; decodes run as recorded."""
    reference = save_family(tmp_path, name)
    model = load_cuda(tmp_path)
    driver = Driver(model.make_runner(SMALL), SMALL)
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt)

    outputs = driver.generate(NUM_TOKENS, chunk=30)

    assert isinstance(model.decoder, program)
    for handle, prompt in enumerate(PROMPTS):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + outputs[handle][:-1]])).logits[0, len(prompt) - 1 :]
        assert outputs[handle] == logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("deepseek_v3", {"kv_lora_rank": 272}),
        ("llama4", {}),
        ("jamba", {}),
        ("mamba", {}),
        ("mamba2", {}),
        ("lfm2", {}),
        ("falcon_h1", {}),
        ("qwen3_next", {}),
    ],
)
def test_layers_without_a_kernel_generate_what_transformers_does(name, changes, tmp_path, load_cuda):
    """Heads beyond those of the kernels, attention in chunks, and states: the host prepares their steps."""
    reference = save_family(tmp_path, name, **changes)
    model = load_cuda(tmp_path)
    layout = layout_of(model)
    driver = Driver(model.make_runner(layout), layout)
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt)

    outputs = driver.generate(NUM_TOKENS, chunk=30)

    for handle, prompt in enumerate(PROMPTS):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + outputs[handle][:-1]])).logits[0, len(prompt) - 1 :]
        assert outputs[handle] == logits.argmax(-1).tolist()


def test_one_kv_head_with_more_query_heads_than_a_tile_usually_has_rows(tmp_path, load, load_cuda):
    """As in Falcon 7B, whose 71 heads are more than the 64 rows of a tile in float32."""
    save_family(tmp_path, "falcon 7b", hidden_size=288, num_attention_heads=72, num_hidden_layers=1)
    drivers = [Driver(device(tmp_path).make_runner(SMALL), SMALL) for device in (load, load_cuda)]
    for driver in drivers:
        for handle, prompt in enumerate(PROMPTS[:2]):
            driver.add(handle, prompt)

    wanted, found = (driver.generate(NUM_TOKENS) for driver in drivers)

    assert found == wanted


def test_steps_that_the_host_prepares_are_not_recorded(tmp_path, load_cuda):
    save_family(tmp_path, "mamba2")
    model, progress = load_cuda(tmp_path), []

    runner = model.make_runner(layout_of(model, KvLayout(8, 16, 16, 1, 4)))
    runner.warm_up(lambda done, total: progress.append((done, total)))

    # A chunk and a request, and three steps of sampling.
    assert progress == [(done, 5) for done in range(1, 6)]


# The interpreter multiplies bfloat16 as if its bits were integers, so it is for the model that has no kernel of attention.
@pytest.mark.parametrize(
    ("name", "half", "tolerance"),
    [
        ("llama4", "float16", 0.1),
        ("falcon_h1", "float16", 0.1),
        ("qwen3_next", "float16", 0.1),
        ("jamba", "float16", 0.1),
        ("mamba", "bfloat16", 0.3),
        ("mamba2", "bfloat16", 0.3),
    ],
)
def test_layers_without_a_kernel_run_in_half_precision(name, half, tolerance, tmp_path, load_cuda):
    """The most likely token of a prompt has nearly the log-probability that it has in float32."""
    save_family(tmp_path, name)
    found = []
    for dtype in ("float32", half):
        model = load_cuda(tmp_path, dtype=dtype)
        layout = layout_of(model)
        driver = Driver(model.make_runner(layout), layout)
        driver.add(0, PROMPTS[2], SamplingSpec(temperature=0.0, num_logprobs=1))
        driver.generate(2, chunk=30)
        found.append(driver.requests[0].logprobs[0][1][0])

    np.testing.assert_allclose(found[1], found[0], atol=tolerance)


def test_padding_of_a_graph_writes_nothing(tmp_path, load_cuda):
    """Two requests run in graphs, whose rungs are warmed up with padding; both give what each gives alone."""
    save_family(tmp_path, "gemma3")
    model = load_cuda(tmp_path)

    def alone(prompt: list[int]) -> list[int]:
        driver = Driver(model.make_runner(SMALL), SMALL)
        driver.add(0, prompt)
        return driver.generate(NUM_TOKENS)[0]

    layout = replace(SMALL, max_num_seqs=2, max_num_batched_tokens=64)
    runner = model.make_runner(layout)
    runner.warm_up(lambda *_: None)
    driver = Driver(runner, layout)
    for handle, prompt in enumerate(PROMPTS[:2]):
        driver.add(handle, prompt)

    outputs = driver.generate(NUM_TOKENS)

    assert outputs == {handle: alone(prompt) for handle, prompt in enumerate(PROMPTS[:2])}


def test_a_cache_in_fp8_has_the_scales_of_the_checkpoint(tmp_path):
    """Keys beyond what fp8 holds are kept whole by their scale, wherever it is written."""
    save_family(tmp_path, "llama")
    tensors = load_file(tmp_path / "model.safetensors")
    for index in range(3):
        tensors[f"model.layers.{index}.self_attn.k_proj.weight"] *= 1024
        tensors[f"model.layers.{index}.self_attn.q_proj.weight"] /= 1024
    plain = generated(tmp_path, tensors, "float32")
    for index, name in enumerate(("k_scale", "attn.k_scale", "k_proj.k_scale")):
        tensors[f"model.layers.{index}.self_attn.{name}"] = torch.tensor(1024.0)

    scaled = generated(tmp_path, tensors, "fp8")

    assert scaled == plain


def generated(directory, tensors: dict[str, torch.Tensor], kv_cache_dtype: str) -> dict[int, list[int]]:
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    device = CudaDevice(WorkerSettings(device="cuda", kv_cache_dtype=kv_cache_dtype), HostAccelerator)
    device.set_up()
    model = device.load_model(LoadRequest("tiny", directory, dtype="float32"), lambda *_: None)
    driver = Driver(model.make_runner(SMALL), SMALL)
    driver.add(0, PROMPTS[1])
    return driver.generate(2)
