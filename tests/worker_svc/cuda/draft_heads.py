"""Models with draft heads on the CUDA device, interpreted, and runs with their drafts."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.worker_svc.conftest import Driver, save_tiny, tiny_config
from tests.worker_svc.runner.proposals import proposals_of
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import SamplingSpec

LAYOUT = KvLayout(num_blocks=40, block_size=8, max_model_len=64, max_num_seqs=3, max_num_batched_tokens=48)
SIZES = {"hidden_size": 64, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2}
SAMPLINGS = [SamplingSpec(temperature=0.0), SamplingSpec(seed=5, top_p=0.9), SamplingSpec(seed=6, temperature=0.7, top_k=30)]
ROOMY = replace(LAYOUT, block_size=32)
"""A layout in which every draft has a block."""
LAYERS, K = 3, 3


def save_target(directory: Path) -> torch.nn.Module:
    """Save a model for EAGLE-3 heads; return transformers' own."""
    return save_tiny(directory, tiny_config("LlamaForCausalLM", **SIZES, num_hidden_layers=LAYERS))


def change(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(load_file(path) | tensors, path)


def driver_of(model, layout: KvLayout = LAYOUT, **fields: object) -> Driver:
    return fill(Driver(model.make_runner(layout), layout), **fields)


def fill(driver: Driver, **fields: object) -> Driver:
    for handle, sampling in enumerate(SAMPLINGS):
        driver.add(handle, range(20 + handle, 30 + 3 * handle), sampling, **fields)
    return driver


def rest(driver: Driver) -> dict[int, int]:
    """Return all tokens that are left to compute."""
    return {handle: driver.remaining(handle) for handle in driver.requests}


def accepted(driver: Driver, num_steps: int) -> list[list[int]]:
    """Return for each step the number of right drafts of each request, if each step verifies the last one's proposals."""
    found, drafts = [], proposals_of(driver.step(rest(driver), num_spec_tokens=K))
    for _ in range(num_steps):
        result = driver.verify(drafts, num_spec_tokens=K)
        found.append([result.handles.tolist().count(handle) - 1 for handle in driver.requests])
        drafts = proposals_of(result)
    return found
