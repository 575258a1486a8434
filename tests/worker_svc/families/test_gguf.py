"""GGUF files of every architecture give transformers' tokens in floats, and nearly its log-probabilities in 8 bits."""

import gguf
import numpy as np
import pytest
import torch

from tests.worker_svc.families.gguf_files import CONVERSIONS, write_gguf
from tests.worker_svc.families.test_parity import verified
from tests.worker_svc.families.tiny_models import save_family
from tetrad.worker_svc.checkpoint.gguf_architectures import ARCHITECTURES
from tetrad.worker_svc.checkpoint.open import open_source

PROMPTS = [np.random.default_rng(length).integers(3, 320, length).tolist() for length in (1, 17, 90)]
NUM_TOKENS = 16
PARTS = [f"self_attn.{name}_proj" for name in "qkv"] + [
    f"{prefix}.{name}_proj" for prefix in ("mlp", "mlp.experts.2") for name in ("gate", "up")
]
AS_PUBLISHED = {
    "gemma2": {"query_pre_attn_scalar": 16},
    "qwen2": {"use_sliding_window": False},
    "qwen2_moe": {"mlp_only_layers": []},
}
"""Values that files do not have, because all published models have these."""


@pytest.fixture(scope="module", params=CONVERSIONS)
def case(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    return request.param, directory, save_family(directory, request.param, **AS_PUBLISHED.get(request.param, {}))


def test_every_architecture_is_tried():
    tried = {gguf.MODEL_ARCH_NAMES[each.architecture] for each in CONVERSIONS.values()}

    assert tried == set(ARCHITECTURES)


def test_floats(case, load, make_driver):
    name, directory, reference = case
    write_gguf(directory / "model.gguf", name, reference, gguf.GGMLQuantizationType.F32)
    driver = make_driver(load(directory / "model.gguf", dtype="float32"))
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt)

    outputs = driver.generate(NUM_TOKENS)

    assert outputs == {handle: verified(reference, prompt, outputs[handle]) for handle, prompt in enumerate(PROMPTS)}


def test_rows_of_quantized_matrices_are_those_of_the_checkpoint(case):
    """Fused matrices and interleaved heads are taken apart without being dequantized."""
    name, directory, reference = case
    write_gguf(directory / "model.gguf", name, reference, gguf.GGMLQuantizationType.Q8_0)
    source = open_source(directory / "model.gguf")
    checked = 0
    for layer in range(2):
        for part in PARTS:
            key = f"model.layers.{layer}.{part}.weight"
            if not source.has(key):
                continue
            matrix, _ = source.load_quantized(key)
            values = gguf.quants.dequantize(matrix.rows, gguf.GGMLQuantizationType(matrix.kind))
            np.testing.assert_array_equal(values, source.load(key)[0])
            checked += 1

    assert checked >= 8
    assert torch.isfinite(source.load("model.norm.weight")[0]).all()
