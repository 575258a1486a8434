"""Quality of the quantized path: SmolLM2's perplexity on the prose of Python's reference, against its dequantized weights.

Short by default, and on one thread; TEST_PERPLEXITY_TOKENS makes it longer (`make quality`), TEST_PERPLEXITY_MODEL names
another file.
"""

import math
import os
import sys
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest

from tests.worker_svc.native.native_programs import RUNNABLE, team_of
from tetrad.tokenizer_svc.loading.load import load_tokenizer
from tetrad.worker_svc.checkpoint.gguf_reader import GgufFile
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.host import usable_cores
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.devices.cpu import CpuDevice, CpuModel

IS_SHORT = "TEST_PERPLEXITY_TOKENS" not in os.environ
NUM_TOKENS = int(os.environ.get("TEST_PERPLEXITY_TOKENS", "900"))
WINDOW = 600
"""Tokens that a text is cut into; each begins anew."""
LAYOUT = KvLayout(
    num_blocks=WINDOW // 8, block_size=16, max_model_len=2 * WINDOW, max_num_seqs=2, max_num_batched_tokens=WINDOW
)
PROMPT_LOGPROBS = SamplingSpec(temperature=0.0, num_prompt_logprobs=0)


@pytest.fixture(scope="module")
def model_file(smollm2) -> Path:
    return Path(os.environ.get("TEST_PERPLEXITY_MODEL", smollm2))


@pytest.fixture(scope="module")
def windows(model_file) -> list[list[int]]:
    """Articles on the data model and on statements, the longest first: they are the most prose."""
    text = "\n\n".join(sorted(topics.values(), key=len, reverse=True)[: 2 + NUM_TOKENS // 2000])
    ids = load_tokenizer(str(model_file)).encode(text[: 8 * NUM_TOKENS])[:NUM_TOKENS]
    assert len(ids) == NUM_TOKENS
    return [ids[at : at + WINDOW] for at in range(0, NUM_TOKENS, WINDOW)]


def loaded(path: Path, kv_cache_dtype: str = "auto", **options: object) -> CpuModel:
    settings = WorkerSettings(threads=1 if IS_SHORT else usable_cores(), cpu_kernels="native", kv_cache_dtype=kv_cache_dtype)
    return CpuDevice(settings).load_model(LoadRequest(str(path), path, **options), lambda *_: None)


def nats(model: CpuModel, windows: list[list[int]], make_driver) -> np.ndarray:
    """Return what each token but the first of a window costs."""
    driver = make_driver(model, LAYOUT)
    costs = []
    for handle, window in enumerate(windows):
        driver.add(handle, window, PROMPT_LOGPROBS)
        driver.step({handle: len(window)})
        costs.append(-driver.remove(handle).prompt_logprobs[0][2][:, 0])
    return np.concatenate(costs)


@pytest.fixture(scope="module")
def exact(request, model_file, smollm2, windows, make_driver) -> np.ndarray:
    is_kept = IS_SHORT and model_file == smollm2
    model = request.getfixturevalue("smollm2_float32") if is_kept else loaded(model_file, dtype="float32")
    return nats(model, windows, make_driver)


def ratio_of(found: np.ndarray, expected: np.ndarray, name: str, capsys) -> float:
    """Return how much larger a perplexity is, and say so if tokens were asked for."""
    ratio, noise = math.exp((found - expected).mean()), (found - expected).std() / math.sqrt(len(found))
    if not IS_SHORT:
        perplexities = f"{math.exp(found.mean()):.4f} against {math.exp(expected.mean()):.4f}"
        with capsys.disabled():
            sys.stdout.write(f"\n{name}: {len(found)} tokens, perplexity {perplexities}, ratio {ratio:.5f} +- {noise:.5f}\n")
    return ratio


def test_perplexity_is_that_of_the_dequantized_weights(model_file, windows, exact, make_driver, capsys):
    quantized = nats(loaded(model_file), windows, make_driver)

    ratio = ratio_of(quantized, exact, f"{model_file.name} against its weights in float32", capsys)

    assert not np.array_equal(exact, quantized)  # one of them would be run as the other
    assert math.exp(exact.mean()) < GgufFile(model_file).config["vocab_size"] ** 0.5  # it predicts
    assert abs(ratio - 1) < 0.01


def test_keys_and_values_of_8_bits_cost_next_to_nothing(model_file, windows, exact, make_driver, capsys):
    in_8_bits = nats(loaded(model_file, kv_cache_dtype="int8", dtype="float32"), windows, make_driver)

    ratio = ratio_of(in_8_bits, exact, "keys and values in 8 bits under weights of float32", capsys)

    assert not np.array_equal(exact, in_8_bits)
    assert abs(ratio - 1) < 0.001


def test_bfloat16_costs_next_to_nothing(model_file, windows, exact, make_driver, capsys):
    if not team_of(RUNNABLE[0]).has_pair_products:
        pytest.skip("this processor does not multiply bfloat16")
    narrow = nats(loaded(model_file, dtype="bfloat16"), windows, make_driver)

    ratio = ratio_of(narrow, exact, "weights and inputs of products in bfloat16", capsys)

    assert not np.array_equal(exact, narrow)
    assert abs(ratio - 1) < 0.002
