"""Updates of the weights of `tetrad serve` over HTTP, while requests run; docs/operations.md."""

import asyncio
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.e2e.tiny_model import save_tiny_model
from tests.one_process_llm import one_process_llm
from tests.weight_files import save_weights, whole_model
from tetrad import SamplingParams

PAGE = (Path(__file__).parents[2] / "docs/operations.md").read_text()
COMPLETIONS = "/v1/completions"
OPTIONS = ("--device", "cpu", "--threads", "1", "--max-model-len", "512", "--tokenizer-pool-size", "1")
NUM_REQUESTS = 8


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def new(own, tmp_path_factory) -> Path:
    return save_weights(own, tmp_path_factory.mktemp("new"), 2)


@pytest.fixture(scope="module")
def stack(start_module_server, own):
    return start_module_server(*OPTIONS, "--operator-endpoints", "on", str(own))


def body(number: int, max_tokens: int) -> dict[str, object]:
    prompt = [7 + number, *range(20, 60), number]
    return {"prompt": prompt, "temperature": 0, "ignore_eos": True, "max_tokens": max_tokens, "return_token_ids": True}


async def answers(url: str, max_tokens: int = 16) -> list[list[int]]:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        calls = (client.post(COMPLETIONS, json=body(number, max_tokens)) for number in range(NUM_REQUESTS))
        found = await asyncio.gather(*calls)
    assert [answer.status_code for answer in found] == [200] * NUM_REQUESTS
    return [answer.json()["choices"][0]["token_ids"] for answer in found]


def answers_of(model: Path) -> list[list[int]]:
    """Return the answers of a model that is loaded anew."""
    prompts = [{"prompt_token_ids": body(number, 16)["prompt"]} for number in range(NUM_REQUESTS)]
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=16)
    with one_process_llm(model, max_model_len=512) as llm:
        return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]


def test_curl_updates_the_weights_as_on_the_page_while_requests_run(stack, own, new, tmp_path):
    blocks = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    [block] = [text for text in blocks if "/update_weights_from_disk" in text]
    script = block.replace("http://127.0.0.1:8000", stack.url).replace("/checkpoints/100", str(new))

    async def under_load() -> tuple[list[list[int]], str]:
        before = stack.metric("generation_tokens_total")
        running = asyncio.create_task(answers(stack.url, max_tokens=400))
        while await asyncio.to_thread(stack.metric, "generation_tokens_total") - before < 100:
            pass
        command = ["bash", "-euc", script]
        said = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True)
        return await running, said.stdout

    before = asyncio.run(answers(stack.url))
    long, said = asyncio.run(under_load())
    after = asyncio.run(answers(stack.url))
    whole = whole_model(own, new, tmp_path / "whole")

    assert '"weight_version":"step-100"' in said.replace(" ", "")
    assert str(new) in said
    assert [len(tokens) for tokens in long] == [400] * NUM_REQUESTS
    assert after == answers_of(whole)
    assert before != after
    stack.wait_idle(10)


def test_a_checkpoint_that_does_not_fit_is_refused_and_the_weights_stay(stack, own, tmp_path):
    before = asyncio.run(answers(stack.url))
    (tmp_path / "smaller").mkdir()
    smaller = save_tiny_model(tmp_path / "smaller", intermediate_size=64)

    answer = httpx.post(f"{stack.url}/update_weights_from_disk", json={"model_path": str(smaller)}, timeout=60)

    assert answer.status_code == 409
    assert "has shape (64, 64), but that of the served model has (64, 96)." in answer.json()["error"]["message"]
    assert asyncio.run(answers(stack.url)) == before
