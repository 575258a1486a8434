"""Two models behind one address of `tetrad serve`: one generates, one embeds; the loss of one does not disturb the other, and
one is unloaded and loaded while the other serves.
"""

import json
import os
import re
import shlex
import signal
import subprocess

import httpx
import pytest

from tests.documents import Page
from tests.e2e.tiny_model import save_tiny_model

PAGE = Page.of("docs/several-models.md")
PROMPT = {"model": "writer", "prompt": "Once upon a time", "max_tokens": 400, "temperature": 0, "ignore_eos": True}
INPUT = {"model": "reader", "input": "Paris is the capital of France."}


@pytest.fixture(scope="module")
def models(start_module_server, tmp_path_factory):
    writer, reader = tmp_path_factory.mktemp("writer"), tmp_path_factory.mktemp("reader")
    save_tiny_model(writer)
    save_tiny_model(reader, hidden_size=32, num_attention_heads=2, max_position_embeddings=128)
    command = PAGE.block("tetrad serve").replace("\\\n", " ").replace("smollm2-135m-instruct", str(writer))
    command = command.replace("sentence-transformers/all-MiniLM-L6-v2", str(reader))
    flags = shlex.split(command.replace('"pooling"', '"pooling", "tokenizer_pool_size": 1'))[2:]
    server = start_module_server(*flags, "--device", "cpu", "--kv-cache-memory-gib", "0.1", "--tokenizer-pool-size", "1")
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield server, http


def test_each_request_goes_to_the_model_that_it_names(models):
    _, http = models

    listed = http.get("/v1/models").json()["data"]
    text = http.post("/v1/completions", json=PROMPT | {"max_tokens": 5})
    embedding = http.post("/v1/embeddings", json=INPUT)

    assert [(each["id"], each["max_model_len"]) for each in listed] == [("writer", 512), ("reader", 128)]
    assert (text.json()["model"], text.json()["usage"]["completion_tokens"]) == ("writer", 5)
    assert (embedding.json()["model"], len(embedding.json()["data"][0]["embedding"])) == ("reader", 32)


def test_the_page_asks_both_models(models):
    server, _ = models
    command = PAGE.block("/v1/models").replace("http://127.0.0.1:8000", server.url)

    told = subprocess.run(["bash", "-c", f"set -e\n{command}"], capture_output=True, text=True, timeout=60, check=True).stdout

    assert all(word in told for word in ('"object":"list"', '"text_completion"', '"embedding":['))


def test_a_task_that_a_model_does_not_have_is_refused_with_its_endpoint_and_the_model_that_has_it(models):
    _, http = models

    text = http.post("/v1/completions", json=PROMPT | {"model": "reader"})
    embedding = http.post("/v1/embeddings", json=INPUT | {"model": "writer"})

    assert (text.status_code, embedding.status_code) == (400, 400)
    assert text.json()["error"]["message"].endswith(
        "it pools. Use /v1/embeddings. The model `writer` of this server does that."
    )
    assert embedding.json()["error"]["message"].endswith(
        "it generates. Use /v1/completions. The model `reader` of this server does that."
    )


def test_the_death_of_one_models_engine_core_does_not_disturb_the_other(models):
    server, http = models
    expected = http.post("/v1/completions", json=PROMPT).json()["choices"][0]["text"]
    embedding = http.post("/v1/embeddings", json=INPUT).json()["data"]
    [engine_core] = [
        process
        for process in server.processes()
        if "tetrad.engine_core_svc" in process.cmdline() and "reader" in process.environ()["TETRAD_ENGINE_CORE_MODEL"]
    ]

    text = ""
    with http.stream("POST", "/v1/completions", json=PROMPT | {"stream": True}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                if not text:
                    os.kill(engine_core.pid, signal.SIGKILL)
                text += json.loads(line[6:])["choices"][0]["text"]

    assert text == expected
    assert server.metric("num_preemptions_total") == 0
    assert http.post("/v1/embeddings", json=INPUT).json()["data"] == embedding


def test_the_page_loads_and_unloads_a_model_whose_services_run(models):
    server, http = models
    [reader] = next(
        json.loads(process.environ()["TETRAD_FRONTEND_FURTHER_MODELS"])
        for process in server.processes()
        if "tetrad.frontend" in process.cmdline()
    )
    command = PAGE.block("/v1/load_model").replace("http://127.0.0.1:8000", server.url)
    for name, address in re.findall(r'"(\w+_targets)": "(dns:[^"]*)"', command):
        command = command.replace(address, ",".join(reader[name]))
    load, unload = re.split("(?<=\n)(?=curl .*unload_model)", command)
    embedding = http.post("/v1/embeddings", json=INPUT).json()["data"]

    def answer_to(curl):
        return subprocess.run(["bash", "-c", curl], capture_output=True, text=True, timeout=120, check=True).stdout

    with http.stream("POST", "/v1/completions", json=PROMPT | {"stream": True}) as stream:
        unloaded = answer_to(unload)
        refused = http.post("/v1/embeddings", json=INPUT)
        loaded = answer_to(load)
        again = http.post("/v1/embeddings", json=INPUT)
        text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in stream.iter_lines() if line.startswith("data: {"))

    assert (unloaded, refused.status_code) == ("Success: model 'reader' unloaded successfully.", 404)
    assert (loaded, again.json()["data"]) == ("Success: model 'reader' loaded successfully.", embedding)
    assert text == http.post("/v1/completions", json=PROMPT).json()["choices"][0]["text"]
