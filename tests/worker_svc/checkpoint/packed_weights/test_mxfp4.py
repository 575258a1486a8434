"""gpt-oss as it is published, experts in MXFP4, gives the tokens of transformers on the dequantized weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.worker_svc.checkpoint.packed_weights.published_gpt_oss import save_published, write
from tests.worker_svc.families.test_parity import verified
from tests.worker_svc.native.test_gguf import loaded, logprobs
from tetrad.services.errors import ModelError

PROMPTS = [np.random.default_rng(length).integers(3, 320, length).tolist() for length in (1, 17, 90)]
NUM_TOKENS = 16
FIRST = "model.layers.0.mlp.experts"


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Returns a directory as OpenAI publishes it, and transformers' model of the weights that these files hold."""
    directory = tmp_path_factory.mktemp("gpt-oss")
    return directory, save_published(directory)


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_tokens_in_float32_are_those_of_transformers(kernels, published, make_driver):
    directory, reference = published
    driver = make_driver(loaded(directory, kernels, dtype="float32"))
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt)

    outputs = driver.generate(NUM_TOKENS)

    assert outputs == {handle: verified(reference, prompt, outputs[handle]) for handle, prompt in enumerate(PROMPTS)}


def test_experts_stay_in_4_bits(published, make_driver):
    """As near as rounded activations are, and as large as the same experts of a GGUF file."""
    directory, _ = published
    expected = logprobs(loaded(directory, "torch"), make_driver)

    model = loaded(directory, "native")

    assert np.abs(logprobs(model, make_driver) - expected).mean() < 0.06 * expected.std()
    num_experts = sum(2 * each.numel() for name, each in tensors_of(directory).items() if name.endswith("_blocks"))
    others = 4 * (model.info.num_parameters - num_experts)
    assert model.info.weights_size_bytes - others < 1.05 * num_experts * (1 / 2 + 4 / 32)  # the router is padded


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def test_progress_ends_at_the_files_size(published):
    from tetrad.worker_svc.config import WorkerSettings
    from tetrad.worker_svc.core.device import LoadRequest
    from tetrad.worker_svc.devices.cpu import CpuDevice

    seen = []

    CpuDevice(WorkerSettings(threads=1)).load_model(LoadRequest("m", published[0]), lambda *counts: seen.append(counts))

    assert seen[-1][0] == pytest.approx(seen[-1][1], rel=0.05)  # the file has a header besides its tensors


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("gate_up_proj_scales", None, "no tensor .*gate_up_proj_scales, which its quantization needs"),
        ("gate_up_proj_scales", torch.zeros(4, 192, 3, dtype=torch.uint8), r"scales has shape \(4, 192, 3\)"),
        ("gate_up_proj_blocks", torch.zeros(4, 192, 32, dtype=torch.uint8), "asks for blocks of 16 bytes"),
        ("gate_up_proj_blocks", torch.zeros(4, 192, 2, 16), "is of type float32"),
        ("down_proj_blocks", torch.zeros(4, 64, 2, 16, dtype=torch.uint8), r"down_proj_scales has shape \(4, 64, 3\)"),
        ("down_proj_blocks", None, "no tensor .*down_proj"),
    ],
    ids=lambda value: value.replace(" ", "-")[:40] if isinstance(value, str) else "",
)
def test_tensors_that_contradict_each_other_are_one_line(name, tensor, said, published, tmp_path):
    tensors = tensors_of(published[0])
    del tensors[f"{FIRST}.{name}"]
    (tmp_path / "config.json").write_text((published[0] / "config.json").read_text())
    write(tmp_path, tensors | ({} if tensor is None else {f"{FIRST}.{name}": tensor}))

    with pytest.raises(ModelError, match=said) as caught:
        loaded(tmp_path, "native")

    assert "\n" not in caught.value.message
