"""Quantized checkpoints on several ranks of the cuda device, interpreted, with gloo: the tokens and the bytes of one rank."""

from pathlib import Path

import numpy as np
import pytest

from tests.grids import grid
from tests.worker_svc.checkpoint.packed_weights.published_gpt_oss import save_published
from tests.worker_svc.checkpoint.packed_weights.whole_models import FORMATS, write_model
from tests.worker_svc.conftest import Driver, save_tiny, tiny_config
from tests.worker_svc.cuda.conftest import host_only
from tests.worker_svc.cuda.test_ranks import LAYOUT, SEEDED, device, loaded
from tests.worker_svc.ranks.groups import open_group
from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.plan import SamplingSpec

pytestmark = host_only

SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2}


def answers(driver: Driver) -> dict[int, list[int]]:
    """Generate for two prompts; few rows, so that fp8's activations stay floats."""
    driver.add(0, range(5, 14), SamplingSpec(temperature=0.0, num_logprobs=2))
    driver.add(1, range(30, 34), SEEDED)
    return driver.generate(2)


@pytest.mark.parametrize("form", grid(FORMATS, lambda form: form in ("awq", "gptq of other order", "fp8 of blocks", "int8")))
def test_weights_stay_packed_and_tokens_are_those_of_one_rank(form, load_cuda, tmp_path):
    new, add = FORMATS[form]
    quantized, _ = write_model(tmp_path, new(), add)
    model = load_cuda(quantized, enforce_eager=True)
    alone = Driver(model.make_runner(LAYOUT), LAYOUT)
    answers(alone)

    with loaded(tmp_path, quantized) as group:  # parts of 192 columns, which cut groups of 128
        sizes = [rank.worker.snapshot().model.weights_size_bytes for rank in group.ranks]
        together = Driver(group, LAYOUT)
        answers(together)

    assert_alike(alone, together)
    # Columns whose groups are not in order are filled up to blocks; here, each rank has half a block of each group.
    assert max(sizes) < (0.65 if "other order" in form else 0.52) * model.info.weights_size_bytes


@pytest.fixture(scope="module")
def floats(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("floats")
    save_tiny(directory, tiny_config("LlamaForCausalLM", **SIZES, head_dim=32, num_hidden_layers=1))
    return directory


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
def test_weights_that_are_quantized_at_load_are_those_of_one_rank(quantization, floats, load_cuda, tmp_path):
    """Rows are quantized whole: with the scales of its columns alone, a rank would have other weights."""
    model = load_cuda(floats, enforce_eager=True, quantization=quantization)
    alone = Driver(model.make_runner(LAYOUT), LAYOUT)
    answers(alone)

    with loaded(tmp_path, floats, quantization=quantization) as group:
        together = Driver(group, LAYOUT)
        answers(together)

    assert_alike(alone, together)


def assert_alike(alone: Driver, together: Driver) -> None:
    """Compare tokens, and log-probabilities of the first request."""
    for handle, request in alone.requests.items():
        assert together.requests[handle].output == request.output
    for (_, values, _), (_, others, _) in zip(alone.requests[0].logprobs, together.requests[0].logprobs, strict=True):
        np.testing.assert_allclose(others, values, atol=1e-4)


def test_experts_whose_blocks_would_be_cut_are_refused_in_one_line(tmp_path):
    save_published(tmp_path, intermediate_size=96, num_hidden_layers=1)

    with (
        open_group(tmp_path, 2, make_device=device) as group,
        pytest.raises(ModelError, match=r"size 2 .* blocks of 32; it may be 1, 3; enable_expert_parallel cuts no experts\."),
    ):
        group.load(tmp_path, LAYOUT)


def test_blocks_of_4_bits_that_a_size_cuts_are_refused_in_one_line(floats, tmp_path):
    with (
        open_group(tmp_path, 2, make_device=device) as group,
        pytest.raises(ModelError, match=r"size 2 cuts matrices of 96 columns into parts of 48, .* has blocks of 32"),
    ):
        group.load(floats, LAYOUT, quantization="int4", hf_overrides_json='{"intermediate_size": 96}')


@pytest.mark.parametrize("expert_parallel", [False, True])
def test_experts_in_4_bits_are_divided(expert_parallel, load_cuda, tmp_path):
    """A layer of gpt-oss as published, all experts in one stack: a part of each expert, or whole ones."""
    save_published(tmp_path, intermediate_size=128, num_hidden_layers=1)
    model = load_cuda(tmp_path, enforce_eager=True)
    alone = Driver(model.make_runner(LAYOUT), LAYOUT)
    answers(alone)

    with loaded(tmp_path, tmp_path, expert_parallel=expert_parallel) as group:
        sizes = [rank.worker.snapshot().model.weights_size_bytes for rank in group.ranks]
        together = Driver(group, LAYOUT)
        answers(together)

    assert_alike(alone, together)
    assert max(sizes) < 0.55 * model.info.weights_size_bytes
