"""An engine that sleeps while requests run, in real processes: memory is released, no answer changes; docs/operations.md."""

import asyncio
import json
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.one_process_llm import one_process_llm
from tetrad import SamplingParams
from tetrad.services.errors import AlreadyExists, Unavailable

PAGE = (Path(__file__).parents[2] / "docs/operations.md").read_text()
COMPLETIONS = "/v1/completions"
MIB = 1 << 20


def body(number: int, **fields: object) -> dict[str, object]:
    prompt = [1000 + (number * 7919 + i * 31) % 40_000 for i in range(20)]
    return {"prompt": prompt, "seed": number, "temperature": 0.8, "ignore_eos": True, "max_tokens": 500} | fields


async def all_answers(stack, disturb=None) -> list[dict[str, object]]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
        tasks = [asyncio.create_task(client.post(COMPLETIONS, json=body(number))) for number in range(8)]
        if disturb is not None:
            before = stack.metric("generation_tokens_total")
            while await asyncio.to_thread(stack.metric, "generation_tokens_total") - before < 200:
                pass
            assert not all(task.done() for task in tasks), "the requests were over before the engine slept"
            await disturb(client)
        answers = [response.json() for response in await asyncio.gather(*tasks)]
    return [answer["choices"][0] for answer in answers]


@pytest.fixture(scope="module")
def stack(start_module_server):
    """Steps that take time: the requests must run for long enough that the engine falls asleep in their midst."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TETRAD_WORKER_SIM_SECONDS_PER_STEP", "0.002")
        return start_module_server("--device", "sim", "--max-model-len", "4096", "--tokenizer-pool-size", "1")


@pytest.fixture(scope="module")
def undisturbed(stack):
    return asyncio.run(all_answers(stack))


@pytest.mark.parametrize("level", [1, 2])
def test_requests_sleep_with_the_engine_and_bring_what_they_would_have(stack, undisturbed, level):
    seen = {}

    async def nap(client):
        assert (await client.post("/sleep", params={"level": level})).json() == {"is_sleeping": True}
        while (health := await client.get("/health")).status_code == 200:
            pass  # the notice travels beside the answer
        seen["health"] = health.json()
        seen["new"] = await client.post(COMPLETIONS, json=body(99))
        seen["asked"] = (await client.get("/is_sleeping")).json()
        assert (await client.post("/wake_up")).json() == {"is_sleeping": False}

    answers = asyncio.run(all_answers(stack, nap))

    assert answers == undisturbed
    assert "asleep" in seen["health"]["problem"]
    assert seen["new"].status_code == 503
    assert seen["new"].json()["error"]["code"] == "sleeping"
    assert seen["new"].json()["error"]["message"] == f"The engine sleeps at level {level}; wake it up first."
    assert seen["asked"] == {"is_sleeping": True}
    assert httpx.get(f"{stack.url}/health").status_code == 200
    stack.wait_idle(10)


def test_curl_lends_the_device_as_on_the_page(stack):
    [block] = [text for text in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if "/sleep" in text]
    lines = block.replace("http://127.0.0.1:8000", stack.url).splitlines()

    said = [json.loads(subprocess.run(["bash", "-euc", line], check=True, capture_output=True).stdout) for line in lines]

    assert said == [{"is_sleeping": True}, {"is_sleeping": True}, {"is_sleeping": False}]


def memory_of_worker(server) -> int:
    return int(server.process_of("worker_svc").memory_info().rss)


def test_a_real_model_frees_its_memory_and_answers_as_before(server):
    asked = {"prompt": list(range(1000, 1900)), "temperature": 0, "max_tokens": 12, "ignore_eos": True}

    def answer() -> str:
        return str(httpx.post(f"{server.url}{COMPLETIONS}", json=asked, timeout=60).json()["choices"][0]["text"])

    before, awake = answer(), memory_of_worker(server)
    httpx.post(f"{server.url}/sleep?level=1", timeout=60).raise_for_status()
    without_cache = memory_of_worker(server)
    httpx.post(f"{server.url}/wake_up", timeout=60).raise_for_status()
    after_level_1 = answer()
    httpx.post(f"{server.url}/sleep?level=2", timeout=60).raise_for_status()
    without_weights = memory_of_worker(server)
    httpx.post(f"{server.url}/wake_up?tags=weights", timeout=60).raise_for_status()
    with_weights = memory_of_worker(server)
    httpx.post(f"{server.url}/wake_up?tags=kv_cache", timeout=60).raise_for_status()

    assert [after_level_1, answer()] == [before, before]
    assert awake - without_cache > 10 * MIB, "the KV cache of 900 tokens"
    assert without_cache - without_weights > 60 * MIB, "98 MB of weights"
    assert with_weights - without_weights > 60 * MIB


def test_a_program_puts_its_model_to_sleep(smollm2):
    params = SamplingParams(max_tokens=4, seed=1, ignore_eos=True)
    with one_process_llm(smollm2, device="sim", max_model_len=512) as llm:
        [before] = llm.generate("Hello", params, use_tqdm=False)

        llm.sleep(level=2)
        asleep = llm.is_sleeping()
        with pytest.raises(Unavailable, match="level 2"):
            llm.generate("Hello", params, use_tqdm=False)
        with pytest.raises(AlreadyExists):
            llm.sleep(level=1)
        llm.wake_up(tags=["weights"])
        assert llm.is_sleeping()
        llm.wake_up(tags=["kv_cache"])

        [after] = llm.generate("Hello", params, use_tqdm=False)

    assert (asleep, after.outputs[0].token_ids) == (True, before.outputs[0].token_ids)
