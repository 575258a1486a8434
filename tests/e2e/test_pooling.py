"""Embeddings, classes and scores over HTTP, from real services with tiny encoders, against transformers."""

import base64
import json
import re
import shlex
import subprocess
import sys

import grpc
import httpx
import numpy as np
import openai
import pytest
import torch

from tests.documents import ROOT, Page
from tests.e2e.conftest import ONE_TOKENIZER
from tests.e2e.embedder import TEXTS, start_embedder
from tests.frontend.api.http.documentation.test_answers import POOLING, check, content_of
from tests.worker_svc.pooling.checkpoints import ids_of, save_cross_encoder
from tetrad.v1 import inference_pb2, inference_pb2_grpc


@pytest.fixture(scope="module")
def embedder(tmp_path_factory, start_module_server):
    return start_embedder(tmp_path_factory.mktemp("embedder"), start_module_server, *ONE_TOKENIZER)


@pytest.fixture(scope="module")
def reranker(tmp_path_factory, start_module_server):
    """Return a server of a tiny cross-encoder, and the score that transformers gives a pair."""
    directory = tmp_path_factory.mktemp("reranker")
    _, score = save_cross_encoder(directory)
    return start_module_server(str(directory), "--device", "cpu", *ONE_TOKENIZER, "--served-model-name", "tiny"), score


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
def test_openais_client_gets_the_embeddings_of_transformers(embedder, encoding_format):
    server, embed = embedder
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")

    answer = client.embeddings.create(model="tiny", input=TEXTS, encoding_format=encoding_format)

    assert [item.index for item in answer.data] == [0, 1, 2]
    for text, item in zip(TEXTS, answer.data, strict=True):
        found = item.embedding
        values = np.frombuffer(base64.b64decode(found), "<f4") if isinstance(found, str) else np.array(found)
        np.testing.assert_allclose(values, embed(text), atol=1e-5)
    assert answer.usage.prompt_tokens == sum(len(ids_of(text)) for text in TEXTS)


@pytest.mark.parametrize("dimensions", [8, 16])
def test_matryoshka_embeddings_are_as_long_as_asked_for(embedder, dimensions):
    server, embed = embedder
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")

    answer = client.embeddings.create(model="tiny", input=TEXTS, dimensions=dimensions)

    expected = np.stack([embed(text)[:dimensions] for text in TEXTS])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose([item.embedding for item in answer.data], expected, atol=1e-5)


def test_ollama_s_routes_embed_and_cut_what_is_too_long(embedder):
    server, embed = embedder
    long = " ".join(["w1"] * 50_000)

    answer = httpx.post(f"{server.url}/api/embed", json={"model": "tiny", "input": [*TEXTS, long]}).json()
    one = httpx.post(f"{server.url}/api/embeddings", json={"model": "tiny", "prompt": TEXTS[0]}).json()
    refused = httpx.post(f"{server.url}/api/embed", json={"model": "tiny", "input": long, "truncate": False})

    np.testing.assert_allclose(answer["embeddings"][: len(TEXTS)], [embed(text) for text in TEXTS], atol=1e-5)
    np.testing.assert_allclose(one["embedding"], embed(TEXTS[0]), atol=1e-5)
    assert refused.status_code == 400


def test_ids_are_embedded_as_they_are(embedder):
    server, embed = embedder
    body = {"input": [ids_of(text) for text in TEXTS]}

    answer = httpx.post(f"{server.url}/v1/embeddings", json=body).json()

    for text, item in zip(TEXTS, answer["data"], strict=True):
        np.testing.assert_allclose(item["embedding"], embed(text), atol=1e-5)


def test_an_embedder_scores_pairs_by_their_cosine(embedder):
    server, embed = embedder
    answer = httpx.post(f"{server.url}/score", json={"text_1": TEXTS[0], "text_2": TEXTS[1:]}).json()

    expected = [float(embed(TEXTS[0]) @ embed(text)) for text in TEXTS[1:]]
    np.testing.assert_allclose([item["score"] for item in answer["data"]], expected, atol=1e-5)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_a_cross_encoder_ranks_documents(reranker, path):
    server, score = reranker
    body = {"model": "tiny", "query": TEXTS[1], "documents": [TEXTS[0], {"text": TEXTS[2]}, "w50"], "top_n": 2}

    answer = httpx.post(f"{server.url}{path}", json=body).json()

    documents = [TEXTS[0], TEXTS[2], "w50"]
    expected = sorted(((score(TEXTS[1], text), index) for index, text in enumerate(documents)), reverse=True)[:2]
    assert [item["index"] for item in answer["results"]] == [index for _, index in expected]
    np.testing.assert_allclose([item["relevance_score"] for item in answer["results"]], [s for s, _ in expected], atol=1e-5)
    assert answer["results"][0]["document"]["text"] == documents[expected[0][1]]


@pytest.mark.parametrize("path", POOLING)
def test_answers_are_as_documented(embedder, reranker, path):
    bodies = {"rerank": {"query": "w1", "documents": ["w2"]}, "score": {"text_1": "w1", "text_2": "w2"}}
    bodies["embed"] = {"texts": ["w1"], "embedding_types": ["float", "ubinary"], "input": "w1"}
    bodies["embeddings"] = {"input": "w1", "prompt": "w1"}
    server = reranker[0] if path == "/classify" else embedder[0]
    document = httpx.get(f"{server.url}/openapi.json").json()

    response = httpx.post(f"{server.url}{path}", json=bodies.get(path.rpartition("/")[2], {"input": "w1"}))

    assert response.status_code == 200, response.text
    check(content_of(document, "post", path)["application/json"], response.json())


TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}{% if add_generation_prompt %}w9{% endif %}"


def test_conversations_are_embedded_by_their_template(embedder):
    server, embed = embedder
    conversations = [[{"role": "user", "content": text}] for text in TEXTS]
    body = {"chat_template": TEMPLATE, "add_special_tokens": True}

    one = httpx.post(f"{server.url}/v1/embeddings", json=body | {"messages": conversations[0]}).json()
    many = httpx.post(f"{server.url}/v1/embeddings", json=body | {"messages": conversations}).json()
    open_turn = httpx.post(
        f"{server.url}/v1/embeddings", json=body | {"messages": conversations[0], "add_generation_prompt": True}
    ).json()

    np.testing.assert_allclose(one["data"][0]["embedding"], embed(TEXTS[0]), atol=1e-5)
    assert [item["index"] for item in many["data"]] == [0, 1, 2]
    np.testing.assert_allclose(many["data"][2]["embedding"], embed(TEXTS[2]), atol=1e-5)
    np.testing.assert_allclose(open_turn["data"][0]["embedding"], embed(f"{TEXTS[0]} w9"), atol=1e-5)


def test_coheres_route_puts_the_models_prompt_before_queries(embedder):
    server, embed = embedder

    def post(**fields):
        return httpx.post(f"{server.url}/v2/embed", json={"model": "tiny", "texts": TEXTS, **fields}).json()

    queries, documents = post(input_type="search_query"), post(input_type="search_document")

    np.testing.assert_allclose(queries["embeddings"]["float"][1], embed(f"w90 w91 {TEXTS[1]}"), atol=1e-5)
    np.testing.assert_allclose(documents["embeddings"]["float"][1], embed(TEXTS[1]), atol=1e-5)
    assert documents["meta"]["billed_units"] == {"input_tokens": sum(len(ids_of(text)) for text in TEXTS)}


def test_coheres_forms_of_embeddings_are_those_of_numpy(embedder):
    server, embed = embedder
    forms = ["float", "base64", "ubinary", "binary"]
    body = {"inputs": [{"content": [{"type": "text", "text": TEXTS[0]}]}], "embedding_types": forms}

    found = httpx.post(f"{server.url}/v2/embed", json=body).json()["embeddings"]

    packed = np.packbits(np.array(found["float"][0]) >= 0)
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(found["base64"][0]), "<f4"), embed(TEXTS[0]), atol=1e-5)
    assert found["ubinary"] == [packed.tolist()]
    assert found["binary"] == [(packed.astype(int) - 128).tolist()]


def test_a_query_and_documents_are_cut_before_they_are_scored(reranker):
    server, score = reranker
    long, limits = " ".join(f"w{n % 20}" for n in range(50_000)), {"max_tokens_per_query": 2, "max_tokens_per_doc": 3}

    answer = httpx.post(f"{server.url}/score", json={"queries": long, "items": [long, "w50"], **limits}).json()

    assert answer["data"][0]["score"] == pytest.approx(score("w0 w1", "w0 w1 w2"), abs=1e-5)
    assert answer["data"][1]["score"] == pytest.approx(score("w0 w1", "w50"), abs=1e-5)


PAIR_TEMPLATE = "{{ instruction | default('w40') }} {{ messages[1].content }} w41 {{ messages[0].content }}"


def test_a_chat_template_and_an_instruction_write_pairs(tmp_path, start_server):
    """The template of the command line, then that of a request; scores are those of transformers for what they write."""
    reference, _ = save_cross_encoder(tmp_path)
    (tmp_path / "pairs.jinja").write_text(PAIR_TEMPLATE)
    server = start_server(
        str(tmp_path), "--device", "cpu", *ONE_TOKENIZER, "--chat-template", str(tmp_path / "pairs.jinja")
    ).wait_ready()
    own = {"chat_template": "w60 {{ messages[0].content }} {{ sort }}", "chat_template_kwargs": {"sort": "w61"}}
    documents = [TEXTS[1]] * 3 + [TEXTS[2]]

    ranked = httpx.post(f"{server.url}/rerank", json={"query": TEXTS[0], "documents": documents}).json()
    instructed = httpx.post(f"{server.url}/score", json={"text_1": TEXTS[0], "text_2": TEXTS[1], "instruction": "w42"}).json()
    with_own = httpx.post(f"{server.url}/score", json={"text_1": TEXTS[0], "text_2": TEXTS[1], **own}).json()
    with grpc.insecure_channel(server.grpc_target) as channel:
        request = inference_pb2.ScoreRequest(queries=TEXTS[:1], documents=TEXTS[1:2], instruction="w42")
        over_grpc = inference_pb2_grpc.InferenceServiceStub(channel).Score(request)

    def expected(text):
        with torch.no_grad():
            return torch.sigmoid(reference(torch.tensor([ids_of(text)])).logits[0, 0]).item()

    found = {result["index"]: result["relevance_score"] for result in ranked["results"]}
    for place, text in enumerate(documents):
        assert found[place] == pytest.approx(expected(f"w40 {text} w41 {TEXTS[0]}"), abs=1e-5)
    assert instructed["data"][0]["score"] == pytest.approx(expected(f"w42 {TEXTS[1]} w41 {TEXTS[0]}"), abs=1e-5)
    assert over_grpc.scores[0] == pytest.approx(instructed["data"][0]["score"], abs=1e-6)
    assert with_own["data"][0]["score"] == pytest.approx(expected(f"w60 {TEXTS[0]} w61"), abs=1e-5)


def test_an_instruction_without_a_template_is_refused(embedder, reranker):
    body = {"text_1": TEXTS[0], "text_2": TEXTS[1], "instruction": "w42"}

    for server, text in ((embedder[0], "are for cross-encoders"), (reranker[0], "need a chat template for pairs")):
        answer = httpx.post(f"{server.url}/score", json=body)

        assert answer.status_code == 400
        assert text in answer.json()["error"]["message"]


def test_grpc_embeds_classifies_and_scores(embedder, reranker):
    with grpc.insecure_channel(embedder[0].grpc_target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        embedded = stub.Embed(inference_pb2.EmbedRequest(texts=TEXTS))
        ids = [inference_pb2.TokenIdList(ids=ids_of(text)) for text in TEXTS]
        by_ids = stub.Embed(inference_pb2.EmbedRequest(prompts=ids))
        scored = stub.Score(inference_pb2.ScoreRequest(queries=TEXTS[:1], documents=TEXTS[1:]))
        with pytest.raises(grpc.RpcError) as refused:
            stub.Classify(inference_pb2.ClassifyRequest(texts=TEXTS))
    with grpc.insecure_channel(reranker[0].grpc_target) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        classified = stub.Classify(inference_pb2.ClassifyRequest(texts=TEXTS[:1]))
        crossed = stub.Score(inference_pb2.ScoreRequest(queries=TEXTS[:2], documents=TEXTS[1:]))

    expected = np.stack([embedder[1](text) for text in TEXTS])
    np.testing.assert_allclose([each.values for each in embedded.embeddings], expected, atol=1e-5)
    np.testing.assert_allclose([each.values for each in by_ids.embeddings], expected, atol=1e-5)
    assert embedded.usage.prompt_tokens == sum(len(ids_of(text)) for text in TEXTS)
    np.testing.assert_allclose(scored.scores, expected[1:] @ expected[0], atol=1e-5)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "it has the tasks embed" in refused.value.details()
    assert len(classified.classifications[0].probabilities) == 1
    np.testing.assert_allclose(crossed.scores, [reranker[1](*TEXTS[:2]), reranker[1](*TEXTS[1:])], atol=1e-5)


def test_batch_files_hold_embeddings_scores_and_rankings(embedder, tmp_path):
    server, embed = embedder
    bodies = {
        "/v1/embeddings": {"input": TEXTS},
        "/v1/score": {"text_1": TEXTS[0], "text_2": TEXTS[1:]},
        "/v1/rerank": {"query": TEXTS[0], "documents": TEXTS[1:]},
    }
    lines = [{"custom_id": url, "method": "POST", "url": url, "body": body} for url, body in bodies.items()]
    given, found = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text("".join(json.dumps(line) + "\n" for line in lines))

    command = [sys.executable, "-m", "tetrad.cli", "run-batch", "-i", given, "-o", found, "--url", server.url]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    results = [json.loads(line) for line in found.read_text().splitlines()]
    answers = {result["custom_id"]: result["response"]["body"] for result in results}
    np.testing.assert_allclose(answers["/v1/embeddings"]["data"][0]["embedding"], embed(TEXTS[0]), atol=1e-5)
    scores = sorted((item["score"] for item in answers["/v1/score"]["data"]), reverse=True)
    assert [item["relevance_score"] for item in answers["/v1/rerank"]["results"]] == pytest.approx(scores)


def test_the_python_client_of_the_page_embeds_and_scores(embedder):
    program = Page.of("docs/clients.md").block("client.embed", language="python")
    # The toy tokenizer knows no English.
    program = re.sub(r"\"[A-Z][^\"]*\.?\"(?=[\],])", '"w1"', program.replace("127.0.0.1:50050", embedder[0].grpc_target))
    run = f"import sys; sys.path.insert(0, {str(ROOT / 'clients/python')!r})\n{program}"

    ran = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=60)

    assert ran.returncode == 0, ran.stderr
    length, score = ran.stdout.split()
    assert (length, float(score)) == ("32", pytest.approx(1.0))


def test_the_page_embeds_with_openais_client_and_ranks_with_curl(embedder):
    page, url = Page.of("docs/pooling.md"), embedder[0].url
    program = page.block("OpenAI(", language="python").replace("http://127.0.0.1:8000", url).replace("all-minilm-l6-v2", "tiny")
    command = page.block("/rerank").replace("http://127.0.0.1:8000", url)

    embedded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    ranked = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)

    assert embedded.returncode == 0, embedded.stderr
    assert embedded.stdout.split()[:2] == ["2", "32"]
    assert len(json.loads(ranked.stdout)["results"]) == 1


def test_a_long_input_is_the_weighted_mean_of_its_parts(embedder):
    server, _ = embedder
    long = [2, *(4 + place for place in range(42)), 3]

    def post(inputs):
        return httpx.post(f"{server.url}/v1/embeddings", json={"input": inputs}).json()

    whole, parts = post([long, [2, 5, 3]]), post([long[:32], long[32:], [2, 5, 3]])

    first, second, short = (np.array(item["embedding"]) for item in parts["data"])
    mean = (32 * first + 12 * second) / 44
    np.testing.assert_allclose(whole["data"][0]["embedding"], mean / np.linalg.norm(mean), atol=1e-6)
    np.testing.assert_allclose(whole["data"][1]["embedding"], short, atol=1e-6)
    assert whole["usage"]["prompt_tokens"] == 44 + 3


def test_pooling_shows_every_token(embedder):
    server, _ = embedder
    answer = httpx.post(f"{server.url}/pooling", json={"input": TEXTS[0], "task": "token_embed"}).json()

    assert np.array(answer["data"][0]["data"]).shape == (len(ids_of(TEXTS[0])), 32)


BAD = {
    "too long": ({"input": "w1 " * 100}, "maximum context length is 64 tokens"),
    "an empty list": ({"input": []}, "You must pass at least one prompt."),
    "an empty text": ({"input": ["w1", ""]}, "cannot be empty"),
    "dimensions": ({"input": "w1", "dimensions": 9}, "only supports Matryoshka dimensions [8, 16], got 9"),
    "a format": ({"input": "w1", "encoding_format": "hex"}, "encoding_format"),
    "an unknown id": ({"input": [[5, 4000]]}, "out of vocabulary"),
    "no input": ({}, "Exactly one of `input` and `messages`"),
    "the input's place": ({"input": ["w1", "w2 " * 100]}, "Input 1: This model's maximum context length is 64 tokens"),
    "too many": ({"input": ["w1"] * 2049}, "input may hold at most 2048 prompts, got 2049"),
    "a truncation": ({"input": "w1", "truncate_prompt_tokens": 65}, "must be -1 or in [1, 64], got 65"),
    "a template without messages": ({"input": "w1", "chat_template": "x"}, "chat_template needs `messages`"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_a_400_that_names_it(embedder, name):
    server, _ = embedder
    body, text = BAD[name]

    response = httpx.post(f"{server.url}/v1/embeddings", json=body)

    assert response.status_code == 400
    assert text in response.json()["error"]["message"]


def test_a_long_text_is_cut_where_that_is_asked_for(embedder):
    server, _ = embedder
    body = {"input": "w1 " * 100_000, "truncate_prompt_tokens": -1}

    assert httpx.post(f"{server.url}/v1/embeddings", json=body).json()["usage"]["prompt_tokens"] == 64


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/v1/completions", {"prompt": "w1"}, "This model does not generate: it pools. Use /v1/embeddings."),
        ("/classify", {"input": "w1"}, "does not support Classification API: it has the tasks embed, token_embed. Use /v1/emb"),
        ("/v2/embed", {"texts": ["w1"], "input_type": "poem"}, "input_type must be one of classification, clustering, query"),
        ("/v2/embed", {"texts": ["w1"], "truncate": "NONE", "max_tokens": 4}, "max_tokens is where an input is cut off"),
        ("/v2/embed", {"texts": ["w1"], "embedding_types": ["int8"]}, "embedding_types"),
        ("/v2/embed", {"images": ["x"]}, "images are not supported"),
        ("/rerank", {"query": "w1", "documents": []}, "documents must not be empty"),
        ("/rerank", {"query": "w1", "documents": ["w2"], "max_tokens_per_doc": 64}, "max_tokens_per_doc (64) must be"),
        ("/score", {"text_1": ["w1", "w2"], "text_2": ["w1"] * 3}, "either 1:1, 1:N or N:N, got 2:3"),
    ],
)
def test_an_endpoint_that_the_model_does_not_have_says_so(embedder, path, body, text):
    server, _ = embedder
    response = httpx.post(f"{server.url}{path}", json=body)

    assert response.status_code == 400
    assert text in response.json()["error"]["message"]


def test_the_command_to_try_works(embedder):
    server, _ = embedder
    server.wait_for_log("curl .*")
    command = next(line for line in server.output().splitlines() if line.startswith("curl "))

    done = subprocess.run([*shlex.split(command), "--fail-with-body", "-sS"], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr
    assert '"embedding"' in done.stdout
