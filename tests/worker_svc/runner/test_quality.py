"""Quality gate: the default form of weights, activations, keys and values against float32, token by token.

Runs on SmolLM2 with one thread and every second prompt by default. With the .gguf file that TEST_QUALITY_MODEL names, runs on
all cores with all prompts (`make quality` runs Qwen2.5 as well, whose keys have large biases). Perplexity hides such errors: it
averages over tokens that any model predicts.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tetrad.tokenizer_svc.loading.load import load_tokenizer
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.host import usable_cores
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.devices.cpu import CpuDevice, CpuModel

PROMPTS = (
    "The capital of France is",
    "The opposite of hot is",
    "Water freezes at a temperature of",
    "def fibonacci(n):\n",
    "Once upon a time, there was a",
    "The largest planet in our solar system is",
    "1, 2, 3, 4, 5,",
    "SELECT name FROM users WHERE",
    "To be, or not to be, that is",
    "The chemical symbol for gold is",
    "import numpy as np\n\n",
    "In 1969, the first man walked on the",
    "Roses are red, violets are",
    "for i in range(10):\n",
    "The president lives in the White",
    "Photosynthesis is the process by which",
    "A dozen eggs is",
    "<html>\n<head>\n<title>",
    "The quick brown fox jumps over the lazy",
    "Monday, Tuesday, Wednesday,",
)
IS_SHORT = "TEST_QUALITY_MODEL" not in os.environ
NUM_TOKENS = 24
"""Tokens that float32 writes behind each prompt, and that the other form is asked about."""
LAYOUT = KvLayout(num_blocks=120, block_size=16, max_model_len=128, max_num_seqs=20, max_num_batched_tokens=2048)
LARGEST_MEAN, LARGEST = 0.04, 0.5
"""Differences of log-probabilities, in nats."""


@dataclass(frozen=True)
class Judgement:
    """How a model rates the tokens of float32's texts.

    Args:
        logprobs: [N] of the tokens themselves.
        best: [N] ids of the most probable tokens.
        margins: [N] from the most probable one to the next.
    """

    logprobs: np.ndarray
    best: np.ndarray
    margins: np.ndarray


@pytest.fixture(scope="module")
def model_file(smollm2) -> Path:
    return Path(os.environ.get("TEST_QUALITY_MODEL", smollm2))


@pytest.fixture(scope="module")
def prompts(model_file) -> list[list[int]]:
    tokenizer = load_tokenizer(str(model_file))
    return [tokenizer.encode(prompt) for prompt in (PROMPTS[::2] if IS_SHORT else PROMPTS)]


def loaded(path: Path, **options: object) -> CpuModel:
    device = CpuDevice(WorkerSettings(threads=1 if IS_SHORT else usable_cores(), cpu_kernels="native"))
    return device.load_model(LoadRequest(str(path), path, **options), lambda *_: None)


def greedy_texts(driver, prompts: list[list[int]]) -> list[list[int]]:
    for handle, prompt in enumerate(prompts):
        driver.add(handle, prompt)
    driver.step({handle: len(prompt) for handle, prompt in enumerate(prompts)})
    for _ in range(NUM_TOKENS - 1):
        driver.step(dict.fromkeys(range(len(prompts)), 1))
    return [list(driver.remove(handle).output) for handle in range(len(prompts))]


def judgement(driver, prompts: list[list[int]], texts: list[list[int]]) -> Judgement:
    columns: list[tuple[np.ndarray, np.ndarray]] = []
    for handle, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        driver.add(handle, prompt + text, SamplingSpec(temperature=0.0, num_prompt_logprobs=2))
        driver.step({handle: len(prompt) + len(text)})
        _, ids, logprobs = driver.remove(handle).prompt_logprobs[0]
        columns.append((ids[len(prompt) - 1 :], logprobs[len(prompt) - 1 :]))
    ids, logprobs = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    return Judgement(logprobs[:, 0], ids[:, 1], logprobs[:, 1] - logprobs[:, 2])


@pytest.fixture(scope="module")
def texts_and_exact(request, model_file, prompts, make_driver) -> tuple[list[list[int]], Judgement]:
    model = request.getfixturevalue("smollm2_float32") if IS_SHORT else loaded(model_file, dtype="float32")
    driver = make_driver(model, LAYOUT)
    texts = greedy_texts(driver, prompts)
    return texts, judgement(driver, prompts, texts)


def test_the_default_form_answers_as_float32_does(model_file, prompts, texts_and_exact, make_driver, capsys):
    """Another token may be the best one only where float32 finds the two nearly equal."""
    texts, exact = texts_and_exact

    found = judgement(make_driver(loaded(model_file), LAYOUT), prompts, texts)

    differences = np.abs(found.logprobs - exact.logprobs)
    differs = found.best != exact.best
    if not IS_SHORT:
        with capsys.disabled():
            sys.stdout.write(
                f"\n{model_file.name}: {len(differences)} tokens, log-probabilities differ by {differences.mean():.4f} nats in"
                f" the mean, {differences.max():.3f} at most; {differs.sum()} best tokens differ,"
                f" by {exact.margins[differs].max(initial=0):.3f} nats at most\n"
            )
    assert differences.max() > 0  # one of them would be run as the other
    assert differences.mean() <= LARGEST_MEAN
    assert differences.max() <= LARGEST
    assert exact.margins[differs].max(initial=0) <= LARGEST


def test_float32_knows_the_answers(model_file, texts_and_exact):
    """The texts are those of a model that works: nothing else would notice errors."""
    texts, exact = texts_and_exact

    assert load_tokenizer(str(model_file)).decode(texts[0]).startswith(" Paris")
    assert exact.logprobs.mean() > -1.5
