"""Fused layers: which models have them, and that they give the same results as layers of separate launches."""

from unittest import mock

import numpy as np
import pytest
import torch

from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import SMALL
from tests.worker_svc.families.tiny_models import save_family
from tetrad.worker_svc.core.lora import LoraLimits
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.cuda.decoder import KernelDecoder
from tetrad.worker_svc.cuda.fused_products import MOST_ROWS, can_fuse
from tetrad.worker_svc.devices.cuda_model import CudaModel
from tetrad.worker_svc.kernels.tile_shapes import shape_by_rule, whole_shape_by_rule
from tetrad.worker_svc.layers.linear import PlainLinear, SideBySide

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
GREEDY = SamplingSpec(temperature=0.0, num_logprobs=2)
PLAIN = PlainLinear(torch.ones(2, 2), None)


@pytest.mark.parametrize(
    ("linears", "dtype", "expected"),
    [
        ([PLAIN] * 4, torch.bfloat16, True),
        ([PLAIN] * 4, torch.float32, True),
        ([PLAIN] * 4, torch.float16, False),
        ([PlainLinear(torch.ones(2, 2), torch.ones(2)), PLAIN, PLAIN, PLAIN], torch.bfloat16, True),
        ([PLAIN, PLAIN, PlainLinear(torch.ones(2, 2), torch.ones(2)), PLAIN], torch.bfloat16, False),
        ([PLAIN, PLAIN, PLAIN, SideBySide([PLAIN])], torch.bfloat16, False),
    ],
    ids=["plain", "float32", "float16", "a bias of qkv", "a bias of gate_up", "another linear"],
)
def test_plain_layers_are_fused_but_in_float16(linears, dtype, expected):
    assert can_fuse(*linears, dtype) is expected


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_fused_layers_compute_what_launched_ones_do(name, tmp_path, load_cuda):
    """Biases of queries, norms of heads; prompts are chunks of up to 32 tokens."""
    save_family(tmp_path, name)
    model = load_cuda(tmp_path, enforce_eager=True)
    assert isinstance(model.decoder, KernelDecoder)

    with mock.patch.object(model.decoder, "_run_fused", wraps=model.decoder._run_fused) as run_fused:
        fused = generate(model)
        num_fused = run_fused.call_count
        with mock.patch.object(model.decoder, "_most_fused", 0):
            launched = generate(model)

    assert 0 < num_fused == run_fused.call_count
    for handle, request in launched.requests.items():
        assert fused.requests[handle].output == request.output
        for (_, found, _), (_, expected, _) in zip(fused.requests[handle].logprobs, request.logprobs, strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-4)


def generate(model: CudaModel) -> Driver:
    driver = Driver(model.make_runner(SMALL), SMALL)
    for handle, length in enumerate((1, 9, 30)):
        driver.add(handle, list(range(3, 3 + length)), GREEDY)
    driver.generate(4, chunk=30)
    return driver


def test_a_step_with_more_rows_is_launched(tiny_cuda):
    with mock.patch.object(KernelDecoder, "_run_fused", side_effect=AssertionError("too many rows")):
        driver = Driver(tiny_cuda.make_runner(SMALL), SMALL)
        driver.add(0, list(range(3, 3 + MOST_ROWS + 1)), GREEDY)
        driver.generate(1, chunk=MOST_ROWS + 1)


@pytest.mark.parametrize("num_outputs", [64, 2048, 17_920])
def test_whole_tiles_are_as_narrow_as_it_takes_to_occupy_every_processor(num_outputs):
    shape = whole_shape_by_rule(1, num_outputs, 1536, 132)

    assert shape.splits == 1
    assert shape.outputs == 16 or -(-num_outputs // shape.outputs) >= 132
    assert shape.outputs <= shape_by_rule(1, num_outputs, 1536, 132).outputs


@pytest.mark.parametrize("num_rows", [0, 1])
def test_layers_that_are_not_plain_are_launched_even_with_no_rows(num_rows, tiny_path, load_cuda):
    decoder = load_cuda(tiny_path, quantization="int8", enforce_eager=True).decoder
    ids = torch.zeros(num_rows, dtype=torch.int64, device=DEVICE)

    with mock.patch.object(decoder, "_run") as run, mock.patch.object(decoder, "_run_fused") as run_fused:
        decoder.forward(ids, ids, [], [mock.Mock()])

    assert run.called
    assert not run_fused.called


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, MOST_ROWS),
        ({"dtype": "float16"}, 0),
        ({"quantization": "int8"}, 0),
        ({"quantization": "fp8"}, 0),
        ({"loras": LoraLimits(max_loras=2, max_lora_rank=16, max_cpu_loras=4)}, 0),
    ],
    ids=["plain", "float16", "int8", "fp8", "adapters"],
)
def test_models_that_are_fused(options, expected, tiny_path, load_cuda):
    assert load_cuda(tiny_path, enforce_eager=True, **options).decoder._most_fused == expected
