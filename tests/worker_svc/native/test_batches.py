"""Batch invariance of the native kernels: a request has the same bits alone, in a batch, in chunks and on other teams."""

import numpy as np
import pytest
import torch

from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.devices.cpu import CpuDevice

ALL_LOGPROBS = SamplingSpec(temperature=0.0, num_logprobs=0, num_prompt_logprobs=0)
LAYOUT = KvLayout(num_blocks=600, block_size=16, max_model_len=1024, max_num_seqs=64, max_num_batched_tokens=4096)
PROMPT = np.random.default_rng(1).integers(0, 320, 75).tolist()
OTHERS = [np.random.default_rng(length).integers(0, 320, length).tolist() for length in range(1, 97, 3)]


def load_with(num_threads: int, path, **options: object):
    device = CpuDevice(WorkerSettings(threads=num_threads, cpu_kernels="native"))
    model = device.load_model(LoadRequest(str(path), path, **options), lambda *_: None)
    device.set_up()
    torch.set_num_threads(1)
    return model


def bits_of(model, make_driver, prompt: list[int], others: list[list[int]], *, chunk: int = 10_000, num_tokens: int = 4):
    """Return tokens and log-probabilities, of the prompt too, of a request among others."""
    driver = make_driver(model, LAYOUT)
    for handle, other in enumerate(others[: len(others) // 2]):
        driver.add(100 + handle, other)
    driver.add(0, prompt, ALL_LOGPROBS)
    for handle, other in enumerate(others[len(others) // 2 :]):
        driver.add(200 + handle, other)
    output = driver.generate(num_tokens, chunk=chunk)[0]
    [(_, _, of_prompt)] = driver.requests[0].prompt_logprobs
    return output, np.concatenate([of_prompt[:, 0], *[values[:1] for _, values, _ in driver.requests[0].logprobs]])


@pytest.mark.parametrize("quantization", ["", "int8"])
def test_a_tiny_models_bits(quantization, tiny_llama, make_driver):
    model = load_with(1, tiny_llama[0], quantization=quantization)
    team = load_with(3, tiny_llama[0], quantization=quantization)

    expected, bits = bits_of(model, make_driver, PROMPT, [])

    for each, others, chunk in [
        (model, OTHERS, 10_000),
        (model, [], 7),
        (model, OTHERS, 7),
        (team, [], 10_000),
        (team, OTHERS, 13),
    ]:
        found, found_bits = bits_of(each, make_driver, PROMPT, others, chunk=chunk)
        assert found == expected
        np.testing.assert_array_equal(found_bits, bits)


# Float32 above: the tiny model without a quantization.
@pytest.mark.parametrize("dtype", ["auto", pytest.param("float32", marks=pytest.mark.exhaustive)])
def test_smollm2s_bits(dtype, smollm2, make_driver):
    """The file's own quanta, and float32."""
    prompt = np.random.default_rng(2).integers(17, 49152, 20).tolist()
    others = [np.random.default_rng(n).integers(17, 49152, n).tolist() for n in (1, 3, 9, 30)]
    model = load_with(2, smollm2, dtype=dtype)

    expected, bits = bits_of(model, make_driver, prompt, [], num_tokens=2)

    for more, chunk in [(others, 10_000), ([], 7)]:
        found, found_bits = bits_of(model, make_driver, prompt, more, chunk=chunk, num_tokens=2)
        assert found == expected
        np.testing.assert_array_equal(found_bits, bits)
