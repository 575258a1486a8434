"""kill -9 of each service of `tetrad serve` while requests of every kind run: no client sees a difference."""

import asyncio
import json
import os
import signal
import time

import httpx
import pytest

MODEL = "smollm2-135m-instruct"
LENGTH = 200
SCHEMA = {"type": "array", "items": {"type": "integer"}, "minItems": 40, "maxItems": 40}
KINDS = {
    "plain": {},
    "seeded": {"temperature": 1.0, "top_p": 0.9},
    "penalised": {"presence_penalty": 0.4, "frequency_penalty": 0.3, "repetition_penalty": 1.1},
    "logprobs": {"logprobs": 2},
    "prompt logprobs": {"prompt_logprobs": 1},
    "structured": {"structured_outputs": {"json": SCHEMA}, "ignore_eos": False},
    "n": {"n": 3, "temperature": 0.8},
    "stop": {"stop": ["never in this text"]},
}


@pytest.fixture(scope="module")
def stack(start_module_server):
    """Steps that take time: a kill must come in the midst of the requests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TETRAD_WORKER_SIM_SECONDS_PER_STEP", "0.001")
        return start_module_server("--device", "sim", "--max-model-len", "4096", "--log-level", "info")


def body(number: int, kind: str, stream: bool) -> dict:
    prompt = [1000 + (number * 7919 + i * 31) % 40_000 for i in range(20)]
    fields = {"model": MODEL, "prompt": prompt, "temperature": 0, "seed": number, "ignore_eos": True, "max_tokens": LENGTH}
    return fields | {"stream": stream} | KINDS[kind]


async def answer(client: httpx.AsyncClient, number: int, kind: str, stream: bool) -> dict:
    """Return what the choices of an answer say, put together by index."""
    choices: dict[int, dict] = {}
    if not stream:
        response = await client.post("/v1/completions", json=body(number, kind, stream))
        assert response.status_code == 200, response.text
        chunks = [response.json()]
    else:
        async with client.stream("POST", "/v1/completions", json=body(number, kind, stream)) as response:
            assert response.status_code == 200
            lines = [line async for line in response.aiter_lines()]
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    for chunk in chunks:
        assert "error" not in chunk, chunk
        for each in chunk["choices"]:
            whole = choices.setdefault(each["index"], {"text": "", "tokens": [], "values": [], "end": None})
            whole["text"] += each["text"]
            if each.get("logprobs"):
                whole["tokens"] += each["logprobs"]["tokens"]
                whole["values"] += each["logprobs"]["token_logprobs"]
            whole["end"] = each["finish_reason"] or whole["end"]
    return choices


async def all_answers(stack, disturb=None) -> list[dict]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
        jobs = [(number, kind, stream) for number, kind in enumerate(KINDS) for stream in (True, False)]
        jobs = [job for job in jobs if job[1:] != ("prompt logprobs", True)]  # which is refused
        tasks = [asyncio.create_task(answer(client, *job)) for job in jobs]
        if disturb is not None:
            before = stack.metric("generation_tokens_total")
            # Each look is a request of its own, off this loop: the answers go on meanwhile.
            while await asyncio.to_thread(stack.metric, "generation_tokens_total") - before < 200:
                pass
            assert not all(task.done() for task in tasks), "the requests were over before the kill"
            disturb()
        return await asyncio.gather(*tasks)


@pytest.fixture(scope="module")
def undisturbed(stack):
    return asyncio.run(all_answers(stack))


@pytest.mark.parametrize("module", ["tokenizer_svc", "engine_core_svc", "worker_svc"])
def test_a_killed_service_changes_no_answer(stack, undisturbed, module):
    killed = stack.process_of(module)

    answers = asyncio.run(all_answers(stack, lambda: os.kill(killed.pid, signal.SIGKILL)))

    assert answers == undisturbed
    stack.wait_idle(10)


def test_a_pause_outlives_the_engine_core_and_so_do_the_requests_that_it_froze(stack, undisturbed):
    seen = []

    def pause_and_kill():
        httpx.post(f"{stack.url}/pause", params={"mode": "keep"}).raise_for_status()
        stack.process_of("engine_core_svc").kill()
        deadline = time.monotonic() + 30
        while (answered := httpx.get(f"{stack.url}/is_paused")).status_code != 200:
            assert time.monotonic() < deadline, answered.text
            time.sleep(0.05)
        before = stack.metric("generation_tokens_total")
        seen.extend([answered.json(), stack.metric("generation_tokens_total") - before])
        httpx.post(f"{stack.url}/resume").raise_for_status()

    answers = asyncio.run(all_answers(stack, pause_and_kill))

    assert seen == [{"is_paused": True}, 0]
    assert answers == undisturbed


@pytest.mark.parametrize(("module", "limit_s"), [("tokenizer_svc", 0.5), ("engine_core_svc", 2.0)])
def test_the_next_request_after_a_kill_is_answered_in_time(stack, undisturbed, module, limit_s):
    """The bar for a quiet machine; four times as much is allowed here, where others compute, too."""
    stack.process_of(module).kill()

    started = time.monotonic()
    response = httpx.post(f"{stack.url}/v1/completions", json={"model": MODEL, "prompt": "Hello", "max_tokens": 4}, timeout=30)

    assert response.status_code == 200
    assert time.monotonic() - started < 4 * limit_s
