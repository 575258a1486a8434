"""Prompts that are embeddings, through all four services: they bring the tokens of the ids that they came from."""

import asyncio
import base64
import io
import pickle
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import save
from transformers import AutoModelForCausalLM

from tests.documents import Page
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
from tetrad import BeamSearchParams, SamplingParams
from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.http.app import create_app
from tetrad.frontend.llm.beam_search import beam_search
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.services.errors import InvalidRequest, Unsupported

LONG = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, detokenize=False)


@dataclass(frozen=True)
class Case:
    """A tiny model, and transformers' reading of it."""

    directory: Path
    reference: torch.nn.Module

    def rows(self, ids: list[int]) -> torch.Tensor:
        """Return the embeddings of ids [T, hidden]."""
        return self.reference.get_input_embeddings().weight.detach()[ids].clone()

    def embeds(self, ids: list[int]) -> dict:
        return {"prompt_embeds": self.rows(ids)}


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Case:
    directory = save_tiny_model(tmp_path_factory.mktemp("embeds"))
    return Case(directory, AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval())


async def in_one_batch(llm, case: Case, prompts: list[list[int]], name: str, params=GREEDY) -> list[list[int]]:
    """Return the outputs of prompts; every second one is given as embeddings."""
    given = [case.embeds(prompt) if index % 2 else prompt for index, prompt in enumerate(prompts)]
    calls = (generate(llm, f"{name}-{index}", prompt, params=params) for index, prompt in enumerate(given))
    return await asyncio.gather(*calls)


@pytest.mark.parametrize("kernels", ["native", "torch"])
async def test_mixed_with_ids_in_one_batch_in_chunks_preempted_and_cached(case, kernels):
    prompts = prompts_of(16)
    options = {"num_gpu_blocks_override": 24, "max_num_batched_tokens": 24, "max_num_seqs": 12}
    async with served(case.directory, f"mixed-{kernels}", worker={"cpu_kernels": kernels}, **options) as llm:
        outputs = await in_one_batch(llm, case, prompts, "first")
        again = await in_one_batch(llm, case, prompts, "again")

        stats = (await llm.engine_admin.loads_known())[0].scheduler
    assert again == outputs
    assert stats.num_preemptions > 0
    for prompt, output in zip(prompts, outputs, strict=True):
        check_greedy(case.reference, prompt, output)


async def test_prefix_cache_tells_embeddings_apart(case):
    """Equal embeddings share blocks; others of the same shape share none, nor do the ids that stand for none."""
    one, other = list(range(7, 47)), list(range(107, 147))
    async with served(case.directory, "cached") as llm:

        async def cached(name: str, prompt: dict) -> int:
            stream = await llm.add_request(name, prompt, GREEDY)
            [last] = [output async for output in stream if output.finished]
            return last.num_cached_tokens

        assert await cached("one", case.embeds(one)) == 0
        assert await cached("one again", case.embeds(one)) == 32
        assert await cached("other", case.embeds(other)) == 0
        assert await cached("zeros", {"prompt_token_ids": [0] * 40}) == 0
        assert await cached("its end differs", case.embeds(one[:30] + other[:10])) == 24


async def test_sampling_with_seeds_and_penalties_is_that_of_the_ids(case):
    """The positions of embeddings are no tokens: a repetition penalty of ids alone lowers what the prompt does not have."""
    prompts = prompts_of(4, seed=3)
    penalised = SamplingParams(
        temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False, presence_penalty=1.5, frequency_penalty=0.5
    )
    async with served(case.directory, "seeded") as llm:
        for name, params in (("seeded", SEEDED), ("penalised", penalised)):
            for index, prompt in enumerate(prompts):
                of_ids = await generate(llm, f"{name}-ids-{index}", prompt, params=params)

                assert await generate(llm, f"{name}-{index}", case.embeds(prompt), params=params) == of_ids

        never = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False, logit_bias={0: 100.0}, repetition_penalty=1e6)
        assert await generate(llm, "zero", case.embeds(prompts[0]), params=never) == [0]


@pytest.mark.parametrize("killed", ["worker", "engine_core"])
async def test_lost_service_changes_no_token(case, killed):
    prompts = prompts_of(6, seed=5)
    async with restartable(case.directory, f"killed-{killed}") as services:
        undisturbed = await in_one_batch(services.llm, case, prompts, "first", LONG)
        running = asyncio.create_task(in_one_batch(services.llm, case, prompts, "killed", LONG))
        await steps_pass(services.llm, 8)
        assert not running.done()
        await kill(services, killed)

        assert await running == undisturbed
    for prompt, output in zip(prompts, undisturbed, strict=True):
        check_greedy(case.reference, prompt, output)


async def test_bad_embeddings_are_refused_with_the_reason(case):
    rows = case.rows([7, 8, 9])
    cases = {
        "2D tensor of shape (num_tokens, hidden_size); got shape (64,)": rows[0],
        "got shape (0, 64)": rows[:0],
        "hidden_size 63 does not match the model's hidden_size 64": rows[:, :63],
        "of dtype torch.int64 is not of a floating-point type": rows.long(),
        "of dtype int32 is not of a floating-point type": rows.numpy().astype(np.int32),
        "not finite": rows * float("nan"),
        "a torch tensor or a numpy array, got list": rows.tolist(),
        "maximum context length is 128 tokens": rows.repeat(60, 1),
    }
    async with served(case.directory, "bad") as llm:
        for text, given in cases.items():
            with pytest.raises(InvalidRequest) as caught:
                await generate(llm, "bad", {"prompt_embeds": given})
            assert text in caught.value.message
        for fields in ({"prompt_token_ids": [1]}, {"surprise": 1}):
            with pytest.raises(InvalidRequest):
                await generate(llm, "bad", {"prompt_embeds": rows} | fields)
        scored = SamplingParams(max_tokens=1, prompt_logprobs=1)
        with pytest.raises(InvalidRequest, match="prompt_logprobs is not compatible with prompt embeds"):
            await generate(llm, "bad", {"prompt_embeds": rows}, params=scored)
        with pytest.raises(InvalidRequest, match="truncate_prompt_tokens is not compatible"):
            await llm.add_request("bad", {"prompt_embeds": rows}, GREEDY, truncate_prompt_tokens=2)
        with pytest.raises(InvalidRequest, match="Beam search does not take prompt_embeds"):
            await beam_search(llm, "bad", {"prompt_embeds": rows}, BeamSearchParams(beam_width=2, max_tokens=2))
        check_greedy(case.reference, [7, 8, 9], await generate(llm, "good", {"prompt_embeds": rows[None].double()}))


async def test_device_without_embeddings_refuses_them(case):
    async with served(case.directory, "sim", worker={"device": "sim"}) as llm:
        with pytest.raises(Unsupported, match="prompt_embeds are not supported by this engine's worker"):
            await generate(llm, "bad", case.embeds([7, 8]))


async def test_embeddings_over_http(case):
    """Choices of embeddings come first; files are safetensors, and nothing else is read."""
    prompts = prompts_of(3, seed=9)

    def encoded(ids: list[int], dtype: torch.dtype = torch.float32, **more: torch.Tensor) -> str:
        return base64.b64encode(save({"embeds": case.rows(ids).to(dtype)} | more)).decode()

    def asked(**fields: object) -> dict:
        return {"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True} | fields

    async with served(case.directory, "http", frontend={"enable_prompt_embeds": True}) as llm:
        app = create_app(ModelDirectory.alone(llm), llm.settings, Guard(llm.settings))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:

            async def refusal(**fields: object) -> str:
                answer = await http.post("/v1/completions", json=asked(**fields))
                assert answer.status_code == 400, answer.text
                return answer.json()["error"]["message"]

            body = asked(prompt=prompts[2], prompt_embeds=[encoded(prompts[0]), encoded(prompts[1])])
            answer = (await http.post("/v1/completions", json=body)).json()
            for prompt, choice in zip(prompts, answer["choices"], strict=True):
                check_greedy(case.reference, prompt, choice["token_ids"])
            assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))

            written = {"model": case.reference, "token_ids": torch.tensor(prompts[0])}
            exec(Page.of("docs/requests.md").block("prompt_embeds", language="python"), written)
            told = (await http.post("/v1/completions", json=asked() | written["body"])).json()["choices"][0]
            assert told["token_ids"] == answer["choices"][0]["token_ids"]

            for dtype in (torch.bfloat16, torch.float16, torch.float64):
                rows = case.rows(prompts[1]).to(dtype).float()
                answer = (await http.post("/v1/completions", json=asked(prompt_embeds=encoded(prompts[1], dtype)))).json()
                expected = await generate(llm, "same", {"prompt_embeds": rows})
                assert answer["choices"][0]["token_ids"] == expected

            torch.save(rows, file := io.BytesIO())
            for pickled in (file.getvalue(), pickle.dumps(rows)):
                text = await refusal(prompt_embeds=base64.b64encode(pickled).decode())
                assert "a file of torch.save, which is not read" in text
            assert "is not base64" in await refusal(prompt_embeds="?")
            assert "is not a safetensors file" in await refusal(prompt_embeds="AAAA")
            assert "must hold one tensor; the file has 2" in await refusal(prompt_embeds=encoded([7], other=torch.ones(1)))
            assert "of dtype I64" in await refusal(prompt_embeds=encoded([7], torch.int64))
            assert "Echo is unsupported" in await refusal(prompt_embeds=encoded([7]), echo=True)
            assert "prompt_logprobs" in await refusal(prompt_embeds=encoded([7]), prompt_logprobs=1)
            assert "at most 1024 prompts" in await refusal(prompt_embeds=["AAAA"] * 1025)
            assert "prompt must be a string" in await refusal(prompt={"a": 1}, prompt_embeds=encoded([7]))


async def test_embedded_parts_of_a_chat(case):
    """A part stands in its place of the rendered conversation; what it cannot be is refused with its name."""
    one, other = [7, 8, 9], [100, 101, 102, 103]
    template = "{% for message in messages %}[{{ message.content }}]{% endfor %}"

    def part(ids: list[int]) -> dict:
        return {"type": "prompt_embeds", "data": base64.b64encode(save({"embeds": case.rows(ids)})).decode()}

    def words(text: str) -> dict:
        return {"type": "text", "text": text}

    def asked(*parts: object, **fields: object) -> dict:
        messages = [{"role": "user", "content": list(parts)}, {"role": "user", "content": "go on"}]
        return {
            "messages": messages,
            "max_tokens": NUM_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "chat_template": template,
        } | fields

    async with served(case.directory, "chat", frontend={"enable_prompt_embeds": True}) as llm:
        app = create_app(ModelDirectory.alone(llm), llm.settings, Guard(llm.settings))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:

            async def refusal(*parts: object, **fields: object) -> tuple[str, str]:
                answer = await http.post("/v1/chat/completions", json=asked(*parts, **fields))
                assert answer.status_code == 400, answer.text
                return answer.json()["error"]["param"], answer.json()["error"]["message"]

            texts = ["[first\n", "\nthen\n", "][go on]"]
            pieces = [await llm.texts.tokenize(text, add_special_tokens=False) for text in texts]
            body = asked(words("first"), part(one), words("then"), part(other))
            answer = (await http.post("/v1/chat/completions", json=body)).json()

            shown = [*pieces[0], 0, 0, 0, *pieces[1], 0, 0, 0, 0, *pieces[2]]
            assert answer["prompt_token_ids"] == shown
            prompt = [*pieces[0], *one, *pieces[1], *other, *pieces[2]]
            check_greedy(case.reference, prompt, answer["choices"][0]["token_ids"])

            place = "messages[0].content[1].data"
            assert await refusal(words("x"), {"type": "prompt_embeds"}) == (
                place,
                f"{place} must be the base64 of a safetensors file, got NoneType.",
            )
            param, text = await refusal(words("x"), {"type": "prompt_embeds", "data": "?"})
            assert (param, "is not base64" in text) == (place, True)
            param, text = await refusal(words("x"), {"type": "prompt_embeds", "data": "AAAA"})
            assert (param, "is not a safetensors file" in text) == (place, True)
            assert "once and in order" in (await refusal(words("<prompt_embeds_0>"), part(one)))[1]
            assert "once and in order" in (await refusal(part(one), chat_template="{{ messages[1].content }}"))[1]
            assert (await refusal(part(one), echo=True))[0] == "echo"
            assert (await refusal(part(one), add_special_tokens=True))[0] == "add_special_tokens"
            assert (await refusal(part(one), prompt_logprobs=1))[0] == "prompt_logprobs"
