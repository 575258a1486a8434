"""Prompt adapters (PEFT's prompt tuning) through all four services: as in PEFT, their rows stand before the prompt."""

import asyncio
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.e2e.adapted_stack import (
    GREEDY,
    NUM_TOKENS,
    SEEDED,
    check_greedy,
    generate,
    kill,
    prompts_of,
    restartable,
    served,
    steps_pass,
)
from tests.e2e.tiny_model import save_tiny_model
from tests.lora_files import merged, save_lora
from tetrad import LoRARequest, SamplingParams
from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.http.app import create_app
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.services.errors import AlreadyExists, InvalidRequest, ModelError, NotFound, Unsupported

NUM_VIRTUAL = 20
LONG = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, detokenize=False)


def save_prompt_adapter(directory: Path, hidden_size: int, *, seed: int, rows: int = NUM_VIRTUAL, **config: object) -> Path:
    """Write virtual tokens as PEFT's save_pretrained does."""
    directory.mkdir(parents=True)
    values = torch.randn(rows, hidden_size, generator=torch.Generator().manual_seed(seed)) * 0.2
    save_file({"prompt_embeddings": values}, directory / "adapter_model.safetensors")
    fields = {
        "peft_type": "PROMPT_TUNING",
        "task_type": "CAUSAL_LM",
        "num_virtual_tokens": rows,
        "token_dim": hidden_size,
        "prompt_tuning_init": "RANDOM",
    }
    (directory / "adapter_config.json").write_text(json.dumps(fields | config))
    return directory


@dataclass(frozen=True)
class Case:
    """A tiny model with prompt adapters 1 and 2 and LoRA adapter 3, and what transformers makes of them."""

    directory: Path
    reference: torch.nn.Module

    def lora(self, number: int) -> LoRARequest | None:
        return LoRARequest(f"adapter-{number}", number, str(self.directory / str(number))) if number else None

    @torch.inference_mode()
    def check(self, number: int, prompt: list[int], output: list[int]) -> None:
        """Check greedy tokens against those of PEFT's forward pass: the virtual tokens' rows, then those of the prompt."""
        if number in (0, 3):
            model = merged(self.reference, self.directory / "3") if number else self.reference
            return check_greedy(model, prompt, output)
        virtual = load_file(self.directory / str(number) / "adapter_model.safetensors")["prompt_embeddings"]
        rows = self.reference.get_input_embeddings()(torch.tensor(prompt + output[:-1]))
        logits = self.reference(inputs_embeds=torch.cat([virtual, rows])[None]).logits[0, NUM_VIRTUAL + len(prompt) - 1 :]
        assert logits.argmax(-1).tolist() == output
        return None


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Case:
    directory = save_tiny_model(tmp_path_factory.mktemp("prompts"))
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    for number in (1, 2):
        save_prompt_adapter(directory / str(number), 64, seed=number)
    save_lora(directory / "3", reference, "q_proj|down_proj", rank=4, seed=3)
    return Case(directory, reference)


async def in_one_batch(llm, case: Case, prompts: list[list[int]], name: str, params=GREEDY) -> list[list[int]]:
    calls = (
        generate(llm, f"{name}-{index}", prompt, case.lora(index % 4), params=params) for index, prompt in enumerate(prompts)
    )
    return await asyncio.gather(*calls)


async def test_mixed_with_loras_and_the_base_model_preempted_and_cached(case):
    prompts = prompts_of(16, longest=40)
    options = {"enable_lora": True, "num_gpu_blocks_override": 22, "max_num_batched_tokens": 24, "max_num_seqs": 12}
    async with served(case.directory, "mixed", **options) as llm:
        outputs = await in_one_batch(llm, case, prompts, "first")
        again = await in_one_batch(llm, case, prompts, "again")

        stats = (await llm.engine_admin.loads_known())[0].scheduler
    assert again == outputs
    assert stats.num_preemptions > 0
    assert stats.prefix_cache_hits > 0
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        case.check(index % 4, prompt, output)


async def test_lost_worker_changes_no_token(case):
    prompts = prompts_of(4, longest=40)
    async with restartable(case.directory, "killed", enable_lora=True) as services:
        running = asyncio.create_task(in_one_batch(services.llm, case, prompts, "killed", LONG))
        await steps_pass(services.llm, 12)

        assert not running.done()
        await kill(services, "worker")

        for index, output in enumerate(await running):
            case.check(index % 4, prompts[index], output)


async def test_answers_do_not_count_virtual_tokens(case):
    prompt = list(range(7, 27))
    async with served(case.directory, "counted") as llm:  # no LoRA is needed
        for cached in (0, 12):
            stream = await llm.add_request("counted", {"prompt_token_ids": prompt}, GREEDY, lora_request=case.lora(1))
            [last] = [output async for output in stream if output.finished]

            assert (last.prompt_token_ids, last.num_cached_tokens) == (prompt, cached)
            assert last.lora_request == case.lora(1)
        seeded = [await generate(llm, f"seeded-{place}", prompt, case.lora(1), SEEDED) for place in range(2)]
        assert seeded[0] == seeded[1]
        with pytest.raises(InvalidRequest, match="maximum context length is 128 tokens"):
            await generate(llm, "long", [7] * 110, case.lora(1))
        with pytest.raises(Unsupported, match="LoRA is not enabled"):
            await generate(llm, "lora", prompt, case.lora(3))
        check_greedy(case.reference, [7] * 110, await generate(llm, "base", [7] * 110))


async def test_life_of_a_prompt_adapter(case, tmp_path):
    """Loaded, listed, pinned, used, replaced in place, unloaded; what it is not is said by name."""
    path, prompt = tmp_path / "own", prompts_of(1)[0]
    shutil.copytree(case.directory / "1", path)
    own = LoRARequest("own", 7, str(path))
    async with served(case.directory, "life") as llm:
        await llm.adapters.load(own)
        await llm.adapters.load(own)  # again: nothing to do
        await llm.adapters.pin(7)
        assert await llm.adapters.list() == [own]
        shutil.rmtree(path)
        case.check(1, prompt, await generate(llm, "one", prompt, own))

        shutil.copytree(case.directory / "2", path)
        case.check(1, prompt, await generate(llm, "still", prompt, own))
        await llm.adapters.load(LoRARequest("own", 7, str(path), load_inplace=True))
        case.check(2, prompt, await generate(llm, "two", prompt, own))

        other = LoRARequest("other", 7, str(case.directory / "1"))
        with pytest.raises(InvalidRequest, match=r"id 7 is 'own' at .*, not 'other'"):
            await generate(llm, "other", prompt, other)
        with pytest.raises(AlreadyExists, match="id 7 is 'own'"):
            await llm.adapters.load(other)
        assert await llm.adapters.unload(7)
        assert not await llm.adapters.unload(7)
        assert await llm.adapters.list() == []


async def test_prompt_adapter_that_cannot_be_used_is_refused_by_name(case, tmp_path):
    save_prompt_adapter(tmp_path / "small", 63, seed=1)
    save_prompt_adapter(tmp_path / "translates", 64, seed=1, task_type="SEQ_2_SEQ_LM")
    save_prompt_adapter(tmp_path / "miscounted", 64, seed=1, num_virtual_tokens=19)
    save_prompt_adapter(tmp_path / "empty", 64, seed=1)
    (tmp_path / "empty" / "adapter_model.safetensors").unlink()
    save_prompt_adapter(tmp_path / "broken", 64, seed=1)
    (tmp_path / "broken" / "adapter_model.safetensors").write_bytes(b"no tensors")
    save_prompt_adapter(tmp_path / "nameless", 64, seed=1)
    save_file({"other": torch.ones(20, 64)}, tmp_path / "nameless" / "adapter_model.safetensors")
    cases = {
        "small": (InvalidRequest, "hidden_size 63 does not match the model's hidden_size 64"),
        "translates": (ModelError, "task_type is 'SEQ_2_SEQ_LM'"),
        "miscounted": (ModelError, "num_virtual_tokens 19, but the file has 20"),
        "empty": (NotFound, "has no adapter_model.safetensors"),
        "broken": (ModelError, "is not a safetensors file"),
        "nameless": (ModelError, "the file has no tensor prompt_embeddings"),
    }
    async with served(case.directory, "bad") as llm:
        for number, (name, (kind, text)) in enumerate(cases.items(), 1):
            with pytest.raises(kind, match=text):
                await generate(llm, name, [7, 8], LoRARequest(name, number, str(tmp_path / name)))
        check_greedy(case.reference, [7, 8], await generate(llm, "base", [7, 8]))


async def test_prompt_adapters_over_http(case, tmp_path):
    """Named in the settings, found in a directory, loaded and unloaded by operators; no engine core with LoRA is needed."""
    shutil.copytree(case.directory / "2", tmp_path / "two")
    fields = {
        "served_model_names": ("base",),
        "lora_modules": (f"one={case.directory / '1'}",),
        "lora_resolver_dir": str(tmp_path),
        "allow_runtime_lora_updating": True,
        "operator_endpoints": "on",
    }
    prompt = prompts_of(1)[0]
    async with served(case.directory, "http", frontend=fields) as llm:
        app = create_app(ModelDirectory.alone(llm), llm.settings, Guard(llm.settings))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:

            async def complete(model: str) -> dict:
                body = {"model": model, "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
                answer = await http.post("/v1/completions", json=body | {"return_token_ids": True})
                return answer.json()

            own = {"lora_name": "own", "lora_path": str(case.directory / "1")}
            assert (await http.post("/v1/load_lora_adapter", json=own)).status_code == 200
            for model, number in (("base", 0), ("one", 1), ("two", 2), ("own", 1)):
                answer = await complete(model)
                case.check(number, prompt, answer["choices"][0]["token_ids"])
                assert answer["usage"]["prompt_tokens"] == len(prompt)
            cards = {card["id"]: card["parent"] for card in (await http.get("/v1/models")).json()["data"]}
            assert cards == {"base": None, "one": "base", "two": "base", "own": "base"}
            assert (await http.post("/v1/unload_lora_adapter", json={"lora_name": "own"})).status_code == 200
            assert (await complete("own"))["error"]["code"] == "model_not_found"
