"""Adapters that PEFT has written bring the tokens that PEFT computes, through all four services."""

import asyncio
import warnings
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM

from tests.e2e.adapted_stack import check_greedy, generate, prompts_of, served
from tests.e2e.tiny_model import save_tiny_model
from tests.lora_files import merged
from tetrad import LoRARequest

NUM_VIRTUAL = 20
LORAS = {
    "plain": {"r": 8, "lora_alpha": 32, "target_modules": "all-linear"},
    "patterns": {
        "r": 16,
        "lora_alpha": 24,
        "use_rslora": True,
        "target_modules": ["q_proj", "v_proj", "down_proj", "lm_head", "embed_tokens"],
        "rank_pattern": {"down_proj": 4, r"layers\.0\.self_attn\.q_proj": 8},
        "alpha_pattern": {"v_proj": 12},
    },
}
PROMPT = "prompt"


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """A tiny model, and adapters as PEFT saves them."""
    directory = save_tiny_model(tmp_path_factory.mktemp("peft"))
    for seed, (name, fields) in enumerate(LORAS.items()):
        save(directory, name, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **fields), seed)
    save(directory, PROMPT, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=NUM_VIRTUAL), 9)
    return directory


def base(directory: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def save(directory: Path, name: str, config: object, seed: int) -> None:
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        # PEFT writes the base model's table beside an adapter of it, as users' files have it.
        warnings.filterwarnings("ignore", "Setting `save_embedding_layers` to `True`")
        get_peft_model(base(directory), config).save_pretrained(directory / name)


def opened(directory: Path, name: str) -> PeftModel:
    """Return the model with an adapter, as PEFT loads and computes it."""
    return PeftModel.from_pretrained(base(directory), directory / name).eval()


async def outputs_of(directory: Path, names: list[str], prompts: list[list[int]]) -> list[list[int]]:
    """Return what each prompt brings with its adapter, all in one batch; "": with the base model."""
    loras = {name: LoRARequest(name, 1 + place, str(directory / name)) for place, name in enumerate((*LORAS, PROMPT))}
    async with served(directory, f"peft-{names[-1]}", enable_lora=True, max_loras=4) as llm:
        calls = (
            generate(llm, f"r{index}", prompt, loras.get(name))
            for index, (name, prompt) in enumerate(zip(names, prompts, strict=True))
        )
        return await asyncio.gather(*calls)


async def test_loras_of_peft_in_one_batch(directory):
    prompts = prompts_of(9, seed=3)
    names = ["", *LORAS] * 3

    outputs = await outputs_of(directory, names, prompts)

    references = {"": base(directory), **{name: opened(directory, name) for name in LORAS}}
    for name, prompt, output in zip(names, prompts, outputs, strict=True):
        check_greedy(references[name], prompt, output)
    assert outputs != await outputs_of(directory, [""] * 9, prompts), "the adapters change nothing"


async def test_prompt_tuning_of_peft(directory):
    prompts = prompts_of(4, seed=5)
    names = [PROMPT, "", PROMPT, "plain"]

    outputs = await outputs_of(directory, names, prompts)

    model = opened(directory, PROMPT)
    for name, prompt, output in zip(names, prompts, outputs, strict=True):
        if name == PROMPT:
            with torch.inference_mode():
                logits = model(torch.tensor([prompt + output[:-1]])).logits[0, NUM_VIRTUAL + len(prompt) - 1 :]
            assert logits.argmax(-1).tolist() == output


@pytest.mark.parametrize("name", LORAS)
def test_the_reference_of_other_tests_merges_as_peft_does(directory, name):
    """Other tests compare with tests.lora_files.merged, which needs no PEFT."""
    expected = dict(opened(directory, name).merge_and_unload().named_parameters(remove_duplicate=False))

    found = merged(base(directory), directory / name)

    for parameter, values in found.named_parameters(remove_duplicate=False):
        torch.testing.assert_close(values, expected[parameter], rtol=1e-5, atol=1e-6)
