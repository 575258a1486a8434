"""The real model through the whole stack, with typical requests."""

from collections.abc import Iterator

import httpx
import openai
import pytest

MODEL = "smollm2-135m-instruct"
FRANCE = "The capital of France is"


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as opened:
        yield opened


def test_the_capital_of_france(client):
    answer = client.completions.create(model=MODEL, prompt=FRANCE, temperature=0, max_tokens=10)

    assert "Paris" in answer.choices[0].text
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 10)


def test_the_text_of_a_stream_is_the_text_of_the_whole(client):
    def ask(**options):
        return client.completions.create(model=MODEL, prompt=FRANCE, temperature=0, max_tokens=30, **options)

    whole = ask().choices[0]
    chunks = [chunk.choices[0] for chunk in ask(stream=True) if chunk.choices]

    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == [whole.finish_reason]


def test_a_chat_streams_an_answer_and_its_usage(client):
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Name the capital of France."}], temperature=0,
            max_tokens=40, stream=True, stream_options={"include_usage": True},
        )
    )  # fmt: skip

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0


def test_a_seeded_request_brings_the_same_text_twice_and_another_seed_another(client):
    def sample(seed):
        answer = client.completions.create(model=MODEL, prompt="Once upon a time", seed=seed, temperature=1, max_tokens=30)
        return answer.choices[0].text

    assert sample(1) == sample(1) != sample(2)


def test_a_request_without_sampling_parameters_gets_the_models_own(server):
    def sample(**given):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 24, "seed": 7, **given}
        return httpx.post(f"{server.url}/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]

    assert sample() == sample(temperature=0.2, top_p=0.9)
    assert sample(temperature=1, top_p=1) != sample()


def test_n_choices_differ_and_share_the_prompt(client):
    answer = client.completions.create(model=MODEL, prompt="Once upon a time", n=3, seed=5, temperature=1, max_tokens=15)

    assert len({choice.text for choice in answer.choices}) == 3
    assert answer.usage.completion_tokens == 45


def test_a_stop_string_ends_the_text_before_it(client):
    answer = client.completions.create(model=MODEL, prompt="Count: 1, 2, 3,", temperature=0, max_tokens=40, stop=["7"])

    assert answer.choices[0].finish_reason == "stop"
    assert "6" in answer.choices[0].text
    assert "7" not in answer.choices[0].text


def test_tokenize_and_detokenize_are_inverse(server):
    tokens = httpx.post(f"{server.url}/tokenize", json={"model": MODEL, "prompt": FRANCE}).json()["tokens"]
    text = httpx.post(f"{server.url}/detokenize", json={"model": MODEL, "tokens": tokens}).json()["prompt"]

    assert tokens == [504, 3575, 282, 4649, 314]
    assert text == FRANCE


def test_models_version_and_docs_are_there(server, client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert "version" in httpx.get(f"{server.url}/version").json()
    assert httpx.get(f"{server.url}/docs").status_code == 200
