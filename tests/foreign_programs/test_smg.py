"""The gateway smg in front of a stack, started and called as in docs/gateways.md, by OpenAI's client."""

import concurrent.futures
import json
import re
import subprocess
import time

import httpx
import openai
import pytest

from tests.foreign_programs.native import chat_text, completion_text
from tests.foreign_programs.page import PAGE, TOKENIZER, asked_of, launch_of

QUESTION = "Name three colours and the capital of France."
MESSAGES = [{"role": "user", "content": QUESTION}]
# smg pings a worker that says nothing after 30 s.
SILENCE_S = 35


class Gateway:
    """smg in front of a stack; `client` speaks to it, `stack` is behind it."""

    def __init__(self, stack, program, url, model, metrics_url):
        self.stack, self.program, self.url, self.model, self.metrics_url = stack, program, url, model, metrics_url
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)

    def chat(self, **fields):
        return self.client.chat.completions.create(
            **({"model": self.model, "messages": MESSAGES, "max_tokens": 12, "temperature": 0} | fields)
        )


def front(start_program, stack, model):
    command, url = launch_of("smg", stack.grpc_target)
    program = start_program(command)
    program.wait_serving(url, model)
    metrics_port = re.search(r"--prometheus-port (\d+)", command)[1]
    return Gateway(stack, program, url, model, f"http://127.0.0.1:{metrics_port}/metrics")


@pytest.fixture(scope="module")
def smg(start_program, model_stack, tokenizer_directory):
    return front(start_program, model_stack, str(tokenizer_directory))


@pytest.fixture(scope="module")
def small(start_program, start_sim):
    """smg in front of a simulated device that takes one request at a time, for three seconds, with one stop string."""
    stack = start_sim("--max-num-requests", "1", "--request-timeout-s", "3", "--max-stop-strings", "1")
    return front(start_program, stack, "smollm2-135m-instruct")


def test_the_page_starts_a_server_on_the_port_that_the_gateway_asks():
    serve = [text.strip() for text in PAGE.blocks() if "tetrad serve" in text and TOKENIZER not in text]

    assert serve == [".venv/bin/tetrad serve --grpc-port 50050"]


def test_the_question_of_the_page_is_answered(smg):
    ran = subprocess.run(["bash", "-c", asked_of(30000, smg.url, smg.model)], capture_output=True, text=True, timeout=60)

    assert "Paris" in json.loads(ran.stdout)["choices"][0]["message"]["content"], ran.stdout + ran.stderr


def test_the_tokenizer_is_fetched_where_the_model_has_no_path(smg):
    assert "Fetching tokenizer from worker" in smg.program.output()


def test_what_the_prefix_cache_holds_is_told_to_the_gateway(smg):
    for _ in range(3):
        smg.chat(messages=[{"role": "user", "content": "Colours: red, green, blue. " * 10}])

    applied = re.findall(r"^smg_kv_event_lag_seconds_count\{.*\} (\d+)$", httpx.get(smg.metrics_url).text, re.MULTILINE)
    # That nothing is known, and the blocks of the prompt.
    assert sum(map(int, applied)) >= 2


def test_a_chat_is_the_native_api_s(smg):
    whole = smg.chat()
    streamed = [chunk.choices[0].delta.content or "" for chunk in smg.chat(stream=True) if chunk.choices]

    expected = chat_text(smg.stack, QUESTION, 12)
    assert whole.choices[0].message.content == "".join(streamed) == expected
    assert len(streamed) > 6
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 12)


def test_a_completion_is_the_native_api_s(smg):
    prompt = "The capital of France is"

    answer = smg.client.completions.create(model=smg.model, prompt=prompt, max_tokens=16, temperature=0)

    assert answer.choices[0].text == completion_text(smg.stack, prompt, 16)


def test_logprobs_are_those_of_http(smg):
    wanted = {"logprobs": True, "top_logprobs": 3, "max_tokens": 8}
    own = openai.OpenAI(base_url=f"{smg.stack.url}/v1", api_key="none", max_retries=0)

    through = smg.chat(**wanted).choices[0].logprobs.content
    direct = (
        own.chat.completions.create(model=smg.model, messages=MESSAGES, temperature=0, **wanted).choices[0].logprobs.content
    )
    streamed = [each for chunk in smg.chat(stream=True, **wanted) for each in logprobs_of(chunk)]

    assert [each.token for each in through] == [each.token for each in direct] == [each.token for each in streamed]
    assert [each.logprob for each in through] == pytest.approx([each.logprob for each in direct], abs=1e-3)
    for one, other in zip(through, direct, strict=True):
        assert [top.token for top in one.top_logprobs] == [top.token for top in other.top_logprobs]


def logprobs_of(chunk):
    return chunk.choices[0].logprobs.content or [] if chunk.choices and chunk.choices[0].logprobs else []


def test_n_stop_strings_and_seeds(smg):
    sampled = smg.chat(n=2, temperature=1.0, seed=7)
    again = smg.chat(n=2, temperature=1.0, seed=7)
    stopped = smg.chat(stop=["Paris"], max_tokens=64, messages=[{"role": "user", "content": "Name the capital of France."}])

    texts = [choice.message.content for choice in sampled.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) == 2
    assert (stopped.choices[0].finish_reason, stopped.choices[0].message.content) == ("stop", "The capital of France is ")


def test_a_schema_holds(smg):
    schema = {"type": "object", "properties": {"name": {"enum": ["Tom", "Kit"]}}, "required": ["name"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "cat", "schema": schema}}

    answer = smg.chat(response_format=form, max_tokens=64)

    assert json.loads(answer.choices[0].message.content)["name"] in ("Tom", "Kit")


def test_a_client_that_leaves_frees_its_blocks(small):
    stream = small.chat(stream=True, max_tokens=1900)
    next(stream)
    assert small.stack.metric("num_requests_running") == 1

    stream.close()

    small.stack.wait_idle(2)
    assert small.stack.metric("request_success_total") < 3


def test_statuses_become_those_of_http(small):
    with pytest.raises(openai.NotFoundError):
        small.chat(model="gpt-9")
    with pytest.raises(openai.BadRequestError, match="stop may hold at most 1 strings, got 2"):
        small.chat(stop=["one", "two"])
    with pytest.raises(openai.InternalServerError) as late:
        small.chat(max_tokens=1900, extra_body={"ignore_eos": True})
    assert late.value.status_code == 504


def test_too_many_requests_are_429(small):
    with small.chat(stream=True, max_tokens=1900) as holding:
        next(holding)
        with pytest.raises(openai.RateLimitError):
            small.chat()
    small.stack.wait_idle(5)


def test_a_worker_that_is_gone_is_503(start_program, start_sim):
    gateway = front(start_program, start_sim(), "smollm2-135m-instruct")
    gateway.stack.stop()

    with pytest.raises(openai.InternalServerError) as caught:
        gateway.chat()

    assert caught.value.status_code == 503


def test_a_long_answer_without_a_word_in_between_survives_the_gateway_s_pings(start_program, start_sim):
    stack = start_sim()
    gateway = front(start_program, stack, "smollm2-135m-instruct")
    httpx.post(f"{stack.url}/pause", params={"mode": "keep"}).raise_for_status()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asking = pool.submit(gateway.chat)
        time.sleep(SILENCE_S)  # nothing else can be waited for
        assert not asking.done()
        httpx.post(f"{stack.url}/resume").raise_for_status()
        answer = asking.result(30)

    assert answer.usage.completion_tokens > 0
