"""Embeddings under load: large requests beside small ones, generation beside embeddings, killed services."""

import base64
import time
from concurrent.futures import ThreadPoolExecutor, wait

import httpx
import numpy as np
import pytest

from tests.e2e.conftest import ONE_TOKENIZER
from tests.e2e.embedder import TEXTS, start_embedder
from tests.e2e.tiny_model import save_tiny_model
from tests.worker_svc.pooling.checkpoints import ids_of

NUM_TEXTS = 300


@pytest.fixture(scope="module")
def embedder(tmp_path_factory, start_module_server):
    return start_embedder(tmp_path_factory.mktemp("embedder"), start_module_server)


def test_two_thousand_texts_are_one_request(embedder):
    server, embed = embedder
    texts = [f"w{place % 100} w{place % 7}" for place in range(2048)]

    answer = httpx.post(f"{server.url}/v1/embeddings", json={"input": texts}, timeout=60).json()

    np.testing.assert_allclose(answer["data"][2047]["embedding"], embed(texts[2047]), atol=1e-5)
    assert len(answer["data"]) == 2048


def test_many_large_requests_leave_room_for_a_small_one(embedder):
    """Five requests of 2,048 texts at once are answered; meanwhile a small one waits for a few steps, not for them."""
    server, embed = embedder
    texts = [f"w{place % 100} w{place % 7}" for place in range(2048)]

    def post(inputs):
        started = time.monotonic()
        response = httpx.post(f"{server.url}/v1/embeddings", json={"input": inputs, "encoding_format": "base64"}, timeout=120)
        return response, time.monotonic() - started

    with ThreadPoolExecutor(6) as pool:
        large = [pool.submit(post, texts) for _ in range(5)]
        time.sleep(0.5)
        small, small_s = post(TEXTS)
        answers = [each.result() for each in large]

    assert small.status_code == 200
    assert [response.status_code for response, _ in answers] == [200] * 5
    for response, _ in answers:
        last = np.frombuffer(base64.b64decode(response.json()["data"][-1]["embedding"]), "<f4")
        np.testing.assert_allclose(last, embed(texts[-1]), atol=1e-5)
    assert small_s < max(seconds for _, seconds in answers) / 2


def test_embeddings_and_generation_at_the_same_time_bring_what_they_bring_alone(tmp_path, start_server):
    """One causal model does both; small steps mix chunks of long inputs with decodes."""
    model = str(save_tiny_model(tmp_path))
    options = ("--runner", "generate", "--convert", "embed", "--max-num-batched-tokens", "64")
    server = start_server(model, "--device", "cpu", *ONE_TOKENIZER, *options).wait_ready()
    inputs = [f"text {place} " * (1 + 3 * place % 40) for place in range(24)]

    with httpx.Client(base_url=server.url, timeout=60) as client, ThreadPoolExecutor(24) as pool:

        def embed(text):
            return client.post("/v1/embeddings", json={"input": text}).json()["data"][0]["embedding"]

        def generate(text):
            body = {"prompt": text, "max_tokens": 24, "temperature": 0.8, "seed": len(text), "ignore_eos": True}
            answer = client.post("/v1/completions", json=body | {"return_token_ids": True}).json()
            return answer["choices"][0]["token_ids"]

        alone = [embed(text) for text in inputs], [generate(text) for text in inputs[:12]]
        tokens = [pool.submit(generate, text) for text in inputs[:12]]
        embeddings = [pool.submit(embed, text) for text in inputs]
        together = [each.result() for each in embeddings], [each.result() for each in tokens]

    np.testing.assert_allclose(together[0], alone[0], atol=1e-5)
    assert together[1] == alone[1]
    assert all(len(each) == 24 for each in together[1])


@pytest.mark.parametrize("service", ["worker_svc", "engine_core_svc", "tokenizer_svc"])
def test_a_killed_service_loses_no_embedding_and_answers_none_twice(embedder, service):
    server, embed = embedder
    distinct = [f"w{place} w{place % 7} w{place % 31}" for place in range(40)]
    expected, texts = [embed(text) for text in distinct], [distinct[place % 40] for place in range(NUM_TEXTS)]
    before = [server.metric(name) for name in ("request_success_total", "prompt_tokens_total")]

    with httpx.Client(timeout=60) as client, ThreadPoolExecutor(16) as pool:

        def post(text):
            return client.post(f"{server.url}/v1/embeddings", json={"input": text}).json()

        answers = [pool.submit(post, text) for text in texts]
        wait(answers[:50])
        server.process_of(service).kill()
        embeddings = [answer.result()["data"][0]["embedding"] for answer in answers]

    np.testing.assert_allclose(embeddings, [expected[place % 40] for place in range(NUM_TEXTS)], atol=1e-5)
    after = [server.metric(name) for name in ("request_success_total", "prompt_tokens_total")]
    assert np.subtract(after, before).tolist() == [NUM_TEXTS, sum(len(ids_of(text)) for text in texts)]
