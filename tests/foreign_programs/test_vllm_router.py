"""vllm-router in front of a stack, started and called as in docs/gateways.md."""

import json
import subprocess

import httpx
import openai
import pytest

from tests.foreign_programs.native import chat_text, completion_text
from tests.foreign_programs.page import TOKENIZER, asked_of, command_of, launch_of

QUESTION = "Name three colours and the capital of France."
MESSAGES = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def url(start_program, model_stack, tokenizer_directory):
    command, url = launch_of("vllm_router.launch_router", model_stack.grpc_target)
    start_program(command).wait_serving(url, str(tokenizer_directory))
    return url


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as opened:
        yield opened


@pytest.fixture
def model(tokenizer_directory):
    return str(tokenizer_directory)


def test_the_server_of_the_page_is_named_after_its_tokenizer():
    assert command_of("tetrad serve", TOKENIZER) == f".venv/bin/tetrad serve --grpc-port 50050 --served-model-name {TOKENIZER}"


def test_the_question_of_the_page_is_answered(url, model):
    ran = subprocess.run(["bash", "-c", asked_of(31000, url, model)], capture_output=True, text=True, timeout=60)

    assert "Paris" in json.loads(ran.stdout)["choices"][0]["message"]["content"], ran.stdout + ran.stderr


def test_models_are_listed(client, model):
    assert [each.id for each in client.models.list()] == [model]


def test_a_chat_is_the_native_api_s(client, model, model_stack):
    request = {"model": model, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}

    whole = client.chat.completions.create(**request)
    chunks = client.chat.completions.create(**request, stream=True)
    streamed = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]

    assert whole.choices[0].message.content == "".join(streamed) == chat_text(model_stack, QUESTION, 12)
    assert len(streamed) > 6
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 12)


def test_a_completion_of_ids_is_the_native_api_s(client, model, model_stack):
    ids = httpx.post(f"{model_stack.url}/tokenize", json={"prompt": "The capital of France is"}).json()["tokens"]

    answer = client.completions.create(model=model, prompt=ids, max_tokens=16, temperature=0)

    assert answer.choices[0].text == completion_text(model_stack, ids, 16)


def test_a_client_that_leaves_frees_its_blocks(client, model, model_stack):
    story = [{"role": "user", "content": "Write a very long story about a fox who lived in a wood beside a lake."}]
    stream = client.chat.completions.create(model=model, messages=story, max_tokens=1900, stream=True, temperature=0)
    next(stream)
    assert model_stack.metric("num_requests_running") == 1

    stream.close()

    model_stack.wait_idle(5)


def test_what_the_server_refuses_is_refused_in_its_words(url, model):
    body = {"model": model, "messages": [{"role": "user", "content": "word " * 2100}]}

    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)

    assert (answer.status_code, "maximum context length is 2048 tokens" in answer.text) == (400, True), answer.text


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("chat/completions", {"messages": MESSAGES, "logprobs": True}, "logprobs are not yet supported"),
        ("completions", {"prompt": "Hello"}, "token-id prompt"),
    ],
)
def test_what_the_router_itself_refuses(url, model, path, fields, words):
    answer = httpx.post(f"{url}/v1/{path}", json={"model": model, "max_tokens": 2, **fields}, timeout=60)

    assert answer.is_error and words in answer.text
