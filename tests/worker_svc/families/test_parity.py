"""Tiny models of every family, and of a few that transformers' code runs, give transformers' tokens.

10 tokens for each of 8 prompts. `make test` runs every family as one batch, on native kernels and on torch, and with one other
split of its steps in turn; the families of ALL_SPLITS, one of each kind of keys, values and states, with all of them.
`make exhaustive-test` runs all other pairs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.grids import grid
from tests.worker_svc.conftest import Driver
from tests.worker_svc.families.tiny_models import FAMILIES, FOREIGN, save_family
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.devices.cpu import CpuDevice

NUM_TOKENS = 10
PROMPTS = [np.random.default_rng(length).integers(3, 320, length).tolist() for length in (1, 9, 16, 17, 31, 75, 154, 300)]
"""All but those of 1 and 17 tokens begin a further block while they decode.

The last one is longer than a chunk on torch, all windows, and the contexts that scaled positions were trained on.
"""
LONG_PROMPT = np.random.default_rng(1000).integers(3, 320, 1000).tolist()
NAMES = [*FAMILIES, *FOREIGN]
SPLITS = ("alone", "in chunks", "from the prefix cache", "after a preemption")
ALL_SPLITS = {
    "llama",
    "gpt_oss",
    "gemma3",
    "llama4",
    "deepseek_v3",
    "jamba",
    "mamba",
    "mamba2",
    "falcon_h1",
    "lfm2",
    "qwen3_next",
    "gemma4",
}
BEYOND_KERNELS = (
    *("llama4", "lfm2", "mamba", "falcon_mamba", "jamba", "bamba", "falcon_h1", "granite_hybrid", "qwen3_next", "qwen3_5"),
    *("deepseek", "glm4_moe_lite", "hunyuan", "cohere with norms", "nemotron_h", "bloom with a normed stream"),
    *FOREIGN,
)
"""Beginnings of the names that the native kernels do not run: torch runs these as one batch already."""
LAYOUT = KvLayout(num_blocks=900, block_size=16, max_model_len=1100, max_num_seqs=16, max_num_batched_tokens=2048)


@dataclass(frozen=True)
class Case:
    directory: Path
    reference: torch.nn.Module
    model: object
    expected: list[list[int]]

    def driver(self, *, keeps_passed: bool = False) -> Driver:
        return Driver(self.model.make_runner(LAYOUT), LAYOUT, keeps_passed=keeps_passed)

    def check(self, outputs: dict[int, list[int]]) -> None:
        assert outputs == {handle: self.expected[handle] for handle in outputs}


@pytest.fixture(scope="module")
def torch_cpu() -> CpuDevice:
    device = CpuDevice(WorkerSettings(threads=1, cpu_kernels="torch"))
    device.set_up()
    return device


def families(split: str) -> pytest.MarkDecorator:
    """Return the cases of a test of one split: `make test` runs it for every fourth family, and for those of ALL_SPLITS."""
    turn = SPLITS.index(split)
    cases = grid(NAMES, lambda name: name in ALL_SPLITS or NAMES.index(name) % len(SPLITS) == turn)
    return pytest.mark.parametrize("case", cases, indirect=True)


@pytest.fixture(scope="module", params=NAMES)
def case(request, tmp_path_factory, load) -> Iterator[Case]:
    directory = tmp_path_factory.mktemp(request.param)
    reference = save_family(directory, request.param)
    model = load(directory)
    case = Case(directory, reference, model, [])
    drafts = generated(case.driver())
    case.expected.extend(verified(reference, prompt, drafts[handle]) for handle, prompt in enumerate(PROMPTS))
    case.check(drafts)
    return case


def generated(driver: Driver, chunk: int = 10_000) -> dict[int, list[int]]:
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt)
    return driver.generate(NUM_TOKENS, chunk=chunk)


@torch.inference_mode()
def verified(reference: torch.nn.Module, prompt: list[int], draft: list[int]) -> list[int]:
    """Return the most likely token at each place of a draft: until one differs, what transformers generates."""
    logits = reference(torch.tensor([prompt + draft[:-1]])).logits[0, len(prompt) - 1 :]
    return logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    "case", grid(NAMES, lambda name: name in ALL_SPLITS or not name.startswith(BEYOND_KERNELS)), indirect=True
)
def test_on_torch(case, torch_cpu):
    """The native kernels run most families; without them, as on a host that has no compiler, torch does."""
    model = torch_cpu.load_model(LoadRequest(str(case.directory), case.directory), lambda *_: None)
    driver = Driver(model.make_runner(LAYOUT), LAYOUT)

    case.check(generated(driver, chunk=200))


@pytest.mark.parametrize("case", grid(NAMES, lambda name: name in ALL_SPLITS), indirect=True)
def test_after_a_prompt_of_1000_tokens(case):
    driver = case.driver()
    driver.add(0, LONG_PROMPT)

    output = driver.generate(NUM_TOKENS)[0]

    assert output == verified(case.reference, LONG_PROMPT, output)


@families("alone")
def test_alone(case):
    driver = case.driver()
    for handle in (0, 3, len(PROMPTS) - 1):  # one token, one token more than a block, the longest
        driver.add(handle, PROMPTS[handle])
        case.check({handle: driver.generate(NUM_TOKENS)[handle]})
        driver.remove(handle)


@families("in chunks")
def test_in_chunks_of_48(case):
    case.check(generated(case.driver(), chunk=48))


@families("from the prefix cache")
def test_from_the_prefix_cache(case):
    """All full blocks of each prompt are read where an earlier request has written them, but for the last token."""
    driver = case.driver(keeps_passed=True)
    generated(driver)
    for handle, prompt in enumerate(PROMPTS):
        num_full = (len(prompt) - 1) // LAYOUT.block_size
        shared = [table[:num_full] for table in driver.requests[handle].tables] if num_full else None
        driver.add(len(PROMPTS) + handle, prompt, shared=shared, computed=num_full * LAYOUT.block_size)

    outputs = driver.generate(NUM_TOKENS)

    case.check({handle: outputs[len(PROMPTS) + handle] for handle in range(len(PROMPTS))})


@families("after a preemption")
def test_after_a_preemption(case):
    driver = case.driver()
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt)
    driver.generate(NUM_TOKENS // 2)
    for handle in range(0, len(PROMPTS), 2):
        preempted = driver.remove(handle)
        driver.step({handle + 1: 1})
        resumed = driver.add(handle, PROMPTS[handle])
        resumed.output, resumed.num_tokens = preempted.output, len(PROMPTS[handle]) + NUM_TOKENS // 2

    outputs = driver.generate(NUM_TOKENS, chunk=48)

    case.check({handle: output[:NUM_TOKENS] for handle, output in outputs.items()})


def test_a_latent_of_queries_with_an_odd_rank(tmp_path, load):
    """A token that is computed alone: its rotated key begins at an odd place of the product's only row."""
    sizes = {"q_lora_rank": 23, "qk_nope_head_dim": 15, "num_attention_heads": 1, "num_key_value_heads": 1}
    reference = save_family(tmp_path, "deepseek_v3", **sizes)
    driver = Driver(load(tmp_path).make_runner(LAYOUT), LAYOUT)
    driver.add(0, PROMPTS[1])

    output = driver.generate(NUM_TOKENS)[0]

    assert output == verified(reference, PROMPTS[1], output)
