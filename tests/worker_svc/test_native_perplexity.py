"""Quality of the quantized path: SmolLM2's perplexity on the prose of Python's reference, against its dequantized weights.

Short by default; TETRAD_PERPLEXITY_TOKENS makes it longer (`make perplexity`), TETRAD_PERPLEXITY_MODEL names another file.
"""

import math
import os
import sys
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest

from tetrad.tokenizer_svc.loading import load_tokenizer
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.devices.cpu import CpuDevice
from tetrad.worker_svc.devices.host import usable_cores
from tetrad.worker_svc.devices.interface import KvLayout, LoadRequest
from tetrad.worker_svc.plan import SamplingSpec
from tetrad.worker_svc.weights.gguf_reader import GgufFile

NUM_TOKENS = int(os.environ.get("TETRAD_PERPLEXITY_TOKENS", "900"))
WINDOW = 600
"""Tokens that a text is cut into; each begins anew."""
LAYOUT = KvLayout(
    num_blocks=WINDOW // 8, block_size=16, max_model_len=2 * WINDOW, max_num_seqs=2, max_num_batched_tokens=WINDOW
)
PROMPT_LOGPROBS = SamplingSpec(temperature=0.0, num_prompt_logprobs=0)


@pytest.fixture(scope="module")
def model_file(smollm2) -> Path:
    return Path(os.environ.get("TETRAD_PERPLEXITY_MODEL", smollm2))


@pytest.fixture(scope="module")
def windows(model_file) -> list[list[int]]:
    """Articles on the data model and on statements, the longest first: they are the most prose."""
    text = "\n\n".join(sorted(topics.values(), key=len, reverse=True)[: 2 + NUM_TOKENS // 2000])
    ids = load_tokenizer(str(model_file)).encode(text[: 8 * NUM_TOKENS]).token_ids[:NUM_TOKENS]
    assert len(ids) == NUM_TOKENS
    return [ids[at : at + WINDOW] for at in range(0, NUM_TOKENS, WINDOW)]


def nats(path: Path, windows: list[list[int]], make_driver, **options: object) -> np.ndarray:
    """Return what each token but the first of a window costs."""
    device = CpuDevice(WorkerSettings(threads=usable_cores(), cpu_kernels="native"))
    driver = make_driver(device.load_model(LoadRequest(str(path), path, **options), lambda *_: None), LAYOUT)
    costs = []
    for handle, window in enumerate(windows):
        driver.add(handle, window, PROMPT_LOGPROBS)
        driver.step({handle: len(window)})
        costs.append(-driver.remove(handle).prompt_logprobs[0][2][:, 0])
    return np.concatenate(costs)


def test_perplexity_is_that_of_the_dequantized_weights(model_file, windows, make_driver, capsys):
    exact = nats(model_file, windows, make_driver, dtype="float32")

    quantized = nats(model_file, windows, make_driver)

    ratio, noise = math.exp((quantized - exact).mean()), (quantized - exact).std() / math.sqrt(len(exact))
    if "TETRAD_PERPLEXITY_TOKENS" in os.environ:
        with capsys.disabled():
            found = (
                f"{math.exp(quantized.mean()):.4f}, of float32 {math.exp(exact.mean()):.4f}, ratio {ratio:.5f} +- {noise:.5f}"
            )
            sys.stdout.write(f"\n{model_file.name}: {len(exact)} tokens, perplexity {found}\n")
    assert not np.array_equal(exact, quantized)  # one of them would be run as the other
    assert math.exp(exact.mean()) < GgufFile(model_file).config["vocab_size"] ** 0.5  # it predicts
    assert abs(ratio - 1) < 0.01
