"""Adapters over quantized weights: those of merged float checkpoints, exactly where weights are dequantized, else nearly."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tests.lora_files import merged, save_lora
from tests.worker_svc.checkpoint.packed_weights.whole_models import FORMATS, write_model
from tests.worker_svc.native.test_gguf import ALL_Q4_0, Kind, write
from tetrad.worker_svc.checkpoint.open import open_source
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.lora import LoraLimits
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.devices.cpu import CpuDevice

LIMITS = LoraLimits(max_loras=2, max_lora_rank=16, max_cpu_loras=2)
MODULES = {1: "q_proj|v_proj|o_proj|gate_proj|down_proj|lm_head|embed_tokens", 2: "k_proj|up_proj"}
PROMPTS = [np.random.default_rng(length).integers(3, 280, length).tolist() for length in (40, 33, 28, 40, 21, 35)]
LOGPROBS = SamplingSpec(temperature=0.0, num_prompt_logprobs=0)
ALPHA = 128
"""Large: the effect of an adapter must stand out from the error of quantized activations."""
EXACT, NEAR = 3e-4, 0.05
"""Tolerance of log-probabilities; and of their mean error on quantized activations, as a share of their standard deviation."""


class Case(NamedTuple):
    """Quantized files, adapters, and transformers' models of the dequantized weights with each adapter merged."""

    path: Path
    adapters: dict[int, Path]
    references: dict[int, torch.nn.Module]


@pytest.fixture(scope="module", params=["Q8_0", "Q4_K", "awq", "gptq", "gptq of other order"])
def case(request, tmp_path_factory) -> Case:
    directory = tmp_path_factory.mktemp("quantized")
    if request.param in FORMATS:
        new, add = FORMATS[request.param]
        path, floats = write_model(directory, new(), add)
        reference = AutoModelForCausalLM.from_pretrained(floats, dtype=torch.float32).eval()
    else:
        path = write(directory / "m.gguf", 256, 512, dict.fromkeys(ALL_Q4_0, Kind[request.param]))
        reference = dequantized(path)
    ranks = {1: 8, 2: 16}
    adapters = {
        number: save_lora(directory / str(number), reference, modules, rank=ranks[number], alpha=ALPHA, seed=number)
        for number, modules in MODULES.items()
    }
    references = {number: merged(reference, adapter) for number, adapter in adapters.items()}
    return Case(path, adapters, {0: reference, **references})


def dequantized(path: Path) -> torch.nn.Module:
    """Return transformers' model of a GGUF file that `write` has made, in floats."""
    config = LlamaConfig(
        vocab_size=288,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
    )
    model, source = LlamaForCausalLM(config).float().eval(), open_source(path)
    model.load_state_dict({name: source.load(_stored(name, source))[0] for name in model.state_dict()})
    return model


def _stored(name: str, source) -> str:
    return name if source.has(name) else "model.embed_tokens.weight"  # tied


def logprobs_of(case: Case, make_driver, kernels: str, **options: object) -> dict[int, np.ndarray]:
    """Return the log-probabilities of each adapter's prompts, all computed in one batch; 0: of the base model."""
    device = CpuDevice(WorkerSettings(threads=1, cpu_kernels=kernels))
    device.set_up()
    model = device.load_model(LoadRequest(str(case.path), case.path, loras=LIMITS, **options), lambda *_: None)
    for number, adapter in case.adapters.items():
        model.loras.install(number, model.loras.read(adapter))
    driver = make_driver(model)
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt, LOGPROBS, lora_id=handle % 3)
    driver.generate(1, chunk=19)
    found = [driver.requests[handle].prompt_logprobs[0][2][:, 0] for handle in range(len(PROMPTS))]
    return {number: np.concatenate(found[number::3]) for number in range(3)}


@torch.inference_mode()
def expected_of(case: Case, number: int, model: int | None = None) -> np.ndarray:
    """Return what transformers computes for an adapter's prompts, with this adapter merged, or another one."""
    reference = case.references[number if model is None else model]
    rows = [
        reference(torch.tensor([prompt])).logits[0].log_softmax(-1)[range(len(prompt) - 1), prompt[1:]]
        for prompt in PROMPTS[number::3]
    ]
    return torch.cat(rows).numpy()


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_dequantized_weights_and_adapters_are_merged_checkpoints(case, kernels, make_driver):
    found = logprobs_of(case, make_driver, kernels, dtype="float32")

    for number, values in found.items():
        np.testing.assert_allclose(values, expected_of(case, number), atol=EXACT)


def test_quantized_weights_keep_their_own_error_only(case, make_driver):
    """On quantized activations: an adapter's error is as small as the base model's, and far below the adapter's effect."""
    found = logprobs_of(case, make_driver, "native")

    errors = {number: float(np.abs(values - expected_of(case, number)).mean()) for number, values in found.items()}
    for number in MODULES:
        effect = float(np.abs(expected_of(case, number) - expected_of(case, number, model=0)).mean())
        assert errors[number] < NEAR * float(expected_of(case, number).std())
        assert errors[number] < 2 * errors[0]
        assert errors[number] < effect / 4
