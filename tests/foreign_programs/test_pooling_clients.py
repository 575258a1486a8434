"""Other people's embedding and reranking clients, and smg, against a tiny encoder."""

import json
import subprocess
import time
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from tests.e2e.conftest import READY_TIMEOUT_S, Server
from tests.foreign_programs.page import launch_of
from tests.worker_svc.pooling.checkpoints import ids_of, save_sentence_encoder

QUERY, DOCUMENTS = "w1 w2", ["w3", "w1 w2", "w4 w5 w6"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A server of a tiny embedding model, and the embedding that transformers makes."""
    directory = tmp_path_factory.mktemp("encoder")
    embed = save_sentence_encoder(directory)
    log = tmp_path_factory.mktemp("server") / "log"
    server = Server(log, str(directory), "--device", "cpu", "--served-model-name", "tiny")
    try:
        yield server.wait_ready(), embed
    finally:
        server.stop()


def test_embedding_and_reranking_clients_work_unmodified(foreign_bin, encoder):
    server, embed = encoder
    script = Path(__file__).with_name("pooling_client.py")

    ran = subprocess.run(
        [foreign_bin / "python", script, server.url, "tiny"], capture_output=True, text=True, timeout=180, check=False
    )

    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    expected = np.stack([embed(text) for text in DOCUMENTS])
    for client in ("openai", "ollama", "langchain", "llama_index", "cohere"):
        np.testing.assert_allclose(told[client], expected, atol=1e-5)
    for client in ("langchain_query", "llama_index_query"):
        np.testing.assert_allclose(told[client], embed(QUERY), atol=1e-5)
    assert told["cohere_bits"] == np.packbits(np.array(told["cohere"]) >= 0, axis=1).tolist()
    assert told["cohere_tokens"] == sum(len(ids_of(text)) for text in DOCUMENTS)
    assert told["jina_tokens"] == sum(len(ids_of(text)) for text in {QUERY, *DOCUMENTS})  # each text once
    scores = expected @ embed(QUERY)
    order = np.argsort(-scores).tolist()
    for ranking in (told["cohere_ranking"], told["jina_ranking"]):
        assert [index for index, _ in ranking] == order[: len(ranking)]
        np.testing.assert_allclose([score for _, score in ranking], scores[order[: len(ranking)]], atol=1e-5)
    assert (len(told["cohere_ranking"]), len(told["jina_ranking"])) == (2, 3)


def test_smg_embeds(start_program, encoder):
    server, embed = encoder
    command, url = launch_of("smg", server.grpc_target)
    program = start_program(command)
    deadline = time.monotonic() + READY_TIMEOUT_S
    body = {"model": "tiny", "input": QUERY}
    status = None
    while status != 200 and time.monotonic() < deadline:
        assert program.process.poll() is None, program.output()
        try:
            status = httpx.post(f"{url}/v1/embeddings", json=body, timeout=30).status_code
        except httpx.TransportError:
            status = None
        time.sleep(0.2)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)

    answer = client.embeddings.create(model="tiny", input=QUERY, encoding_format="float")

    np.testing.assert_allclose(answer.data[0].embedding, embed(QUERY), atol=1e-5)
    assert answer.usage.prompt_tokens == len(ids_of(QUERY))
