"""LoRA adapters through all four services: tokens are those of merged checkpoints, while adapters are loaded and replaced."""

import argparse
import asyncio
import os
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.documents import Page
from tests.e2e import adapted_stack
from tests.e2e.adapted_stack import (
    NUM_TOKENS,
    SEEDED,
    check_greedy,
    generate,
    kill,
    prompts_of,
    restartable,
    steps_pass,
)
from tests.e2e.tiny_model import save_tiny_model
from tests.lora_files import merged, save_lora
from tetrad import LoRARequest, SamplingParams
from tetrad.cli.options import add_engine_options, engine_args
from tetrad.cli.server_options import add_server_options, server_fields
from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.http.app import create_app
from tetrad.frontend.api.http.completions.bodies import CompletionRequest
from tetrad.frontend.api.http.operations.loras import LoadLoraRequest, UnloadLoraRequest
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.services.errors import FailedPrecondition, InvalidRequest, NotFound, TetradError
from tetrad.stack.one_process import Fields
from tetrad.worker_svc.devices import lora_parts

LORAS = {"enable_lora": True, "max_loras": 4}
EVERYTHING = "q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|lm_head|embed_tokens"
IS_WHOLE = bool(os.environ.get("TEST_MANY_ADAPTERS"))
NUM_ADAPTERS, NUM_PLACES = (200, 8) if IS_WHOLE else (40, 4)
"""`make lora-test` has 200 adapters take turns in 8 places."""
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
LONG = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, detokenize=False)


@dataclass(frozen=True)
class Case:
    """A tiny model, adapters 1 (rank 8), 2 (rank 16, other modules) and more, and what transformers makes of them."""

    directory: Path
    reference: torch.nn.Module

    def lora(self, number: int) -> LoRARequest | None:
        return LoRARequest(f"adapter-{number}", number, str(self.directory / str(number))) if number else None

    def model(self, number: int) -> torch.nn.Module:
        return merged(self.reference, self.directory / str(number)) if number else self.reference


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Case:
    directory = tmp_path_factory.mktemp("loras")
    save_tiny_model(directory)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    save_lora(directory / "1", reference, EVERYTHING, rank=8, seed=1)
    save_lora(directory / "2", reference, "k_proj|up_proj|o_proj", rank=16, seed=2, use_rslora=True)
    for number in range(3, NUM_ADAPTERS + 1):
        save_lora(directory / str(number), reference, "q_proj|down_proj", rank=2, seed=number)
    return Case(directory, reference)


@asynccontextmanager
async def served(case: Case, name: str, *, frontend: Fields | None = None, **engine_core: object) -> AsyncIterator[AsyncLLM]:
    async with adapted_stack.served(case.directory, name, frontend=frontend, **(LORAS | engine_core)) as llm:
        yield llm


async def in_one_batch(
    llm: AsyncLLM, case: Case, prompts: list[list[int]], numbers: list[int], name: str, params=adapted_stack.GREEDY
) -> list[list[int]]:
    calls = (
        generate(llm, f"{name}-{index}", prompt, case.lora(number), params)
        for index, (prompt, number) in enumerate(zip(prompts, numbers, strict=True))
    )
    return await asyncio.gather(*calls)


@pytest.mark.parametrize("num_blocks", [200, 24])
async def test_mixed_batch_equals_merged_checkpoints(case, num_blocks):
    """Base and two adapters in a batch of 32; with few blocks, requests are preempted. Then again from the prefix cache."""
    prompts, numbers = prompts_of(32), [index % 3 for index in range(32)]
    references: Mapping[int, torch.nn.Module] = {number: case.model(number) for number in range(3)}
    async with served(case, f"mixed-{num_blocks}", num_gpu_blocks_override=num_blocks) as llm:
        outputs = await in_one_batch(llm, case, prompts, numbers, "first")
        again = await in_one_batch(llm, case, prompts, numbers, "again")

        stats = (await llm.engine_admin.loads_known())[0].scheduler
    assert again == outputs
    assert (stats.num_preemptions > 0) == (num_blocks < 100)
    assert stats.prefix_cache_hits > 0 or num_blocks < 100  # few blocks keep no prompt until it comes again
    for prompt, number, output in zip(prompts, numbers, outputs, strict=True):
        check_greedy(references[number], prompt, output)


async def test_equal_prompts_of_different_adapters_share_no_blocks(case):
    prompt = list(range(7, 107))
    async with served(case, "shared") as llm:
        for round_ in range(2):
            for number in range(3):
                output = await generate(llm, f"{round_}-{number}", prompt, case.lora(number))

                check_greedy(case.model(number), prompt, output)


async def test_many_adapters_take_turns_in_few_places(case):
    """Many adapters round robin over few places: no request fails, and tokens stay those of each adapter alone."""
    count = 2 * NUM_ADAPTERS
    prompts, numbers = prompts_of(count), [1 + index % NUM_ADAPTERS for index in range(count)]
    places = {"max_loras": NUM_PLACES // 2, "max_cpu_loras": NUM_PLACES}
    async with served(case, "turns", **places) as llm:
        outputs = await in_one_batch(llm, case, prompts, numbers, "turns")

        assert {lora.lora_int_id for lora in await llm.engine_admin.list_loras()} == set(range(1, NUM_ADAPTERS + 1))
        text = llm.metrics.render().decode()
        assert text.count("tetrad:lora_requests_info{") == 1
        assert text.count("tetrad:lora_requests_total{") <= 66
    for number in (1, 2, 3, 17, NUM_ADAPTERS):
        check_greedy(case.model(number), prompts[number - 1], outputs[number - 1])
        check_greedy(case.model(number), prompts[number - 1 + NUM_ADAPTERS], outputs[number - 1 + NUM_ADAPTERS])


async def test_no_step_waits_for_a_load(case, monkeypatch):
    """While an adapter is read, others generate as many tokens as they like; its own requests wait and lose nothing."""
    may_read, is_reading, read = threading.Event(), threading.Event(), lora_parts.read_lora

    def slow_read(directory, *args, **options):
        if directory.name == "2":
            is_reading.set()
            assert may_read.wait(60)
        return read(directory, *args, **options)

    monkeypatch.setattr(lora_parts, "read_lora", slow_read)
    async with served(case, "slow") as llm:
        await llm.adapters.load(case.lora(1))
        waiting = asyncio.create_task(generate(llm, "waits", [7, 8], case.lora(2)))
        assert await asyncio.to_thread(is_reading.wait, 60)

        for number in (0, 1):
            check_greedy(case.model(number), [9, 10], await generate(llm, f"r{number}", [9, 10], case.lora(number), LONG))

        assert not waiting.done()
        may_read.set()
        check_greedy(case.model(2), [7, 8], await waiting)


@pytest.mark.skipif(not IS_WHOLE, reason="make lora-test: it measures times")
async def test_loads_of_slow_disks_do_not_lengthen_the_time_between_tokens(case, monkeypatch):
    """200 adapters over 8 places, each read for 50 ms; beside them, streams wait less for a token, and memory is flat."""
    read = lora_parts.read_lora

    def slow_read(directory, *args, **options):
        time.sleep(0.05)
        return read(directory, *args, **options)

    monkeypatch.setattr(lora_parts, "read_lora", slow_read)
    async with served(case, "measured", max_loras=4, max_cpu_loras=8, max_num_seqs=16) as llm:
        gaps: list[float] = []

        async def follow(name: str) -> None:
            params = SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True, detokenize=False)
            while not turns.done():
                stream = await llm.add_request(name, {"prompt_token_ids": [7]}, params)
                times = [time.perf_counter() async for _ in stream][1:]
                gaps.extend(after - before for before, after in pairwise(times))

        async def in_turns() -> list[int]:
            sizes = []
            for number in range(1, NUM_ADAPTERS + 1):
                check_greedy(case.model(number), [9, 10], await generate(llm, f"t{number}", [9, 10], case.lora(number)))
                sizes.append(psutil.Process().memory_info().rss)
            return sizes

        turns = asyncio.create_task(in_turns())
        await asyncio.gather(turns, *(follow(f"stream-{number}") for number in range(4)))
    gaps.sort()
    sizes = turns.result()
    median, tail = gaps[len(gaps) // 2], gaps[int(len(gaps) * 0.99)]
    sys.stdout.write(f"{len(gaps)} gaps: median {1e3 * median:.2f} ms, p99 {1e3 * tail:.2f} ms\n")
    assert tail < 0.05
    assert sizes[-1] < sizes[NUM_ADAPTERS // 4] + (64 << 20)


@pytest.mark.parametrize("killed", ["worker", "engine_core"])
async def test_lost_service_changes_no_token(case, killed):
    """Adapters are loaded again for the requests that have them; an idle one as well, if only the worker was lost."""
    prompts, numbers = prompts_of(9, seed=4), [index % 3 for index in range(9)]
    async with restartable(case.directory, f"killed-{killed}", **LORAS) as services:
        await services.llm.adapters.load(case.lora(4))
        running = asyncio.create_task(in_one_batch(services.llm, case, prompts, numbers, "killed", LONG))
        await steps_pass(services.llm, 12)

        assert not running.done()
        await kill(services, killed)

        outputs = await running
        for prompt, number, output in zip(prompts, numbers, outputs, strict=True):
            check_greedy(case.model(number), prompt, output)
        check_greedy(case.model(4), prompts[0], await generate(services.llm, "after", prompts[0], case.lora(4)))
        known = {lora.lora_int_id for lora in await services.llm.adapters.list()}
        assert known == {1, 2, 4}


async def test_evicted_adapter_is_loaded_again(case):
    prompt = prompts_of(1)[0]
    async with served(case, "evicted", max_loras=1, max_cpu_loras=1) as llm:
        for round_ in range(3):
            for number in (1, 2, 0):
                output = await generate(llm, f"{round_}-{number}", prompt, case.lora(number))

                check_greedy(case.model(number), prompt, output)


async def test_seeded_tokens_do_not_depend_on_other_adapters(case):
    prompts = prompts_of(6)
    async with served(case, "seeded") as llm:
        alone = [await generate(llm, f"alone-{i}", prompt, case.lora(i % 3), SEEDED) for i, prompt in enumerate(prompts)]
        calls = (generate(llm, f"batch-{i}", prompt, case.lora(i % 3), SEEDED) for i, prompt in enumerate(prompts))

        assert await asyncio.gather(*calls) == alone


async def test_life_of_an_adapter(case, tmp_path):
    """Loaded, listed, used, replaced in place, unloaded; what it is not is said by name."""
    path = tmp_path / "own"
    shutil.copytree(case.directory / "1", path)
    lora, prompt = LoRARequest("own", 7, str(path)), prompts_of(1)[0]
    async with served(case, "life") as llm:
        admin = llm.engine_admin
        await admin.load_lora(lora)
        await admin.load_lora(lora)  # again: nothing to do
        await admin.pin_lora(7)
        assert [each.lora_name for each in await admin.list_loras()] == ["own"]
        check_greedy(case.model(1), prompt, await generate(llm, "one", prompt, lora))

        shutil.rmtree(path)
        shutil.copytree(case.directory / "2", path)
        check_greedy(case.model(1), prompt, await generate(llm, "still", prompt, lora))
        await admin.load_lora(LoRARequest("own", 7, str(path), load_inplace=True))
        check_greedy(case.model(2), prompt, await generate(llm, "two", prompt, lora))

        with pytest.raises(InvalidRequest, match=r"id 7 is 'own' at .*, not 'other'"):
            await generate(llm, "other", prompt, LoRARequest("other", 7, str(path)))
        with pytest.raises(NotFound, match="no adapter with id 8"):
            await admin.pin_lora(8)
        assert await admin.unload_lora(7)
        assert not await admin.unload_lora(7)
        assert await admin.list_loras() == []


async def test_adapter_in_use_is_not_unloaded(case):
    long = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, detokenize=False)
    async with served(case, "use") as llm:
        stream = await llm.add_request("long", {"prompt_token_ids": [7, 8, 9]}, long, lora_request=case.lora(1))
        await anext(aiter(stream))

        with pytest.raises(FailedPrecondition, match="'adapter-1' is in use by 1 unfinished requests"):
            await llm.engine_admin.unload_lora(1)
        [last] = [output.outputs[0].token_ids async for output in stream if output.finished]
        check_greedy(case.model(1), [7, 8, 9], last)


async def test_adapters_over_http(case, tmp_path):
    """Named as `model`; listed with their parent; loaded, replaced and unloaded by operators; found in a directory."""
    shutil.copytree(case.directory / "2", tmp_path / "two")
    fields = {
        "served_model_names": ("base",),
        "lora_modules": (f"sql={case.directory / '1'}",),
        "lora_resolver_dir": str(tmp_path),
        "allow_runtime_lora_updating": True,
        "operator_endpoints": "on",
    }
    prompt = prompts_of(1)[0]

    async def complete(http: httpx.AsyncClient, model: str) -> list[int]:
        body = {"model": model, "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
        answer = await http.post("/v1/completions", json=body | {"return_token_ids": True})
        assert answer.status_code == 200, answer.text
        assert answer.json()["model"] == model
        return answer.json()["choices"][0]["token_ids"]

    async with served(case, "http", frontend=fields) as llm:
        app = create_app(ModelDirectory.alone(llm), llm.settings, Guard(llm.settings))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            for model, number in (("base", 0), ("sql", 1), ("two", 2)):
                check_greedy(case.model(number), prompt, await complete(http, model))
            cards = {card["id"]: card for card in (await http.get("/v1/models")).json()["data"]}
            assert {name: card["parent"] for name, card in cards.items()} == {"base": None, "sql": "base", "two": "base"}
            assert cards["sql"]["root"] == str(case.directory / "1")

            chat = {"model": "sql", "messages": [{"role": "user", "content": "hello"}], "chat_template": TEMPLATE}
            chat |= {"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
            answer = (await http.post("/v1/chat/completions", json=chat)).json()
            check_greedy(case.model(1), answer["prompt_token_ids"], answer["choices"][0]["token_ids"])
            scraped = (await http.get("/metrics")).text
            assert 'tetrad:lora_requests_total{adapter="sql",model_name="base"} 2.0' in scraped

            async def order(what: str, **body: object) -> httpx.Response:
                return await http.post(f"/v1/{what}_lora_adapter", json=body)

            loaded = await order("load", lora_name="three", lora_path=str(case.directory / "3"))
            assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'three' added successfully.")
            check_greedy(case.model(3), prompt, await complete(http, "three"))
            again = await order("load", lora_name="three", lora_path=str(case.directory / "4"))
            assert again.status_code == 400
            assert "has already been loaded" in again.text
            replaced = await order("load", lora_name="three", lora_path=str(case.directory / "4"), load_inplace=True)
            assert replaced.status_code == 200, replaced.text
            check_greedy(case.model(4), prompt, await complete(http, "three"))

            removed = await order("unload", lora_name="three")
            assert (removed.status_code, removed.text) == (200, "Success: LoRA adapter 'three' removed successfully.")
            assert len(await llm.engine_admin.list_loras()) == 2
            gone = await http.post("/v1/completions", json={"model": "three", "prompt": prompt})
            assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
            for status, body in (
                (400, {"lora_name": "x"}),
                (400, {"lora_name": "base", "lora_path": "/x"}),
                (404, {"lora_name": "x", "lora_path": "/nowhere"}),
            ):
                assert (await order("load", **body)).status_code == status
            assert (await order("unload", lora_name="x")).status_code == 404
            assert (await http.post("/v1/completions", json={"model": "../1", "prompt": "a"})).status_code == 404


async def test_directory_that_vanished_fails_its_requests_alone(case, tmp_path):
    path = tmp_path / "gone"
    shutil.copytree(case.directory / "1", path)
    gone, prompt = LoRARequest("gone", 9, str(path)), prompts_of(1)[0]
    async with served(case, "gone", max_loras=1) as llm:
        check_greedy(case.model(1), prompt, await generate(llm, "before", prompt, gone))
        await generate(llm, "evicts", prompt, case.lora(2))
        shutil.rmtree(path)

        calls = (generate(llm, f"after-{number}", prompt, lora) for number, lora in enumerate((gone, case.lora(2), None)))
        failed, second, base = await asyncio.gather(*calls, return_exceptions=True)

    assert isinstance(failed, TetradError)
    assert "Adapter 'gone'" in failed.message
    check_greedy(case.model(2), prompt, second)
    check_greedy(case.reference, prompt, base)


def test_commands_of_the_page_are_taken():
    """Flags as `tetrad serve` reads them, bodies as the endpoints do."""
    serve, curls = Page.of("docs/lora.md").blocks()
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_server_options(parser)
    add_engine_options(parser)
    options = parser.parse_args(shlex.split(serve)[2:])

    assert server_fields(options)["lora_modules"] == ("sql=/adapters/sql", "legal=/adapters/legal")
    assert engine_args(options).max_cpu_loras == 32
    bodies = zip((CompletionRequest, LoadLoraRequest, UnloadLoraRequest), re.findall("-d '(.*?)'", curls), strict=True)
    for model, body in bodies:
        model.model_validate_json(body)
