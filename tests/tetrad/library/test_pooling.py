"""LLM's embeddings, classes and scores, with services of its own, against transformers.

The services of the embedder are processes; those of models that one test has run in this process.
"""

import asyncio

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification, Qwen3Model

import tetrad
from tests.documents import Page
from tests.e2e.library_calls import value_of
from tests.e2e.tiny_model import save_tiny_model
from tests.lora_files import merged, save_lora
from tests.one_process_llm import services_in_process
from tests.worker_svc.pooling.checkpoints import (
    ENCODERS,
    ids_of,
    save_colbert,
    save_cross_encoder,
    save_encoder,
    save_modules,
    save_sentence_encoder,
    save_tokenizer,
)
from tests.worker_svc.pooling.decoders import SIZES, save_decoder
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.services.errors import InvalidRequest, Unsupported

TEXTS = ["w0 w1 w2", "w7", "w0 w1 w2 w3 w4 w5"]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    directory = tmp_path_factory.mktemp("embedder")
    embed = save_sentence_encoder(directory)
    with services_in_process(), tetrad.LLM(str(directory), device="cpu") as llm:
        yield llm, embed


def test_embed_returns_an_embedding_of_each_prompt(embedder):
    llm, embed = embedder
    outputs = llm.embed(TEXTS, use_tqdm=False)

    for text, output in zip(TEXTS, outputs, strict=True):
        np.testing.assert_allclose(output.outputs.embedding, embed(text), atol=1e-5)
        assert output.prompt_token_ids == ids_of(text)
        assert output.outputs.hidden_size == 32


@pytest.mark.usefixtures("services_here")
def test_long_prompts_are_embedded_in_parts(tmp_path):
    embed = save_sentence_encoder(tmp_path, max_seq_length=16)
    counts = []

    class Bar:
        def __init__(self, total, **_):
            counts.append(total)

        def update(self, number=1):
            counts.append(number)

        def close(self):
            pass

    long = ids_of(" ".join(f"w{n}" for n in range(35)))
    chunked = {"enable_chunked_processing": True, "max_embed_len": 40}
    with tetrad.LLM(str(tmp_path), device="cpu", pooler_config=chunked) as llm:
        short, whole = llm.embed([TEXTS[0], {"prompt_token_ids": long}], use_tqdm=Bar)
        raw, *parts = llm.embed(
            [{"prompt_token_ids": ids} for ids in (long, long[:16], long[16:32], long[32:])],
            pooling_params=tetrad.PoolingParams(use_activation=False),
            use_tqdm=False,
        )
        with pytest.raises(InvalidRequest, match="maximum context length is 40 tokens"):
            llm.embed({"prompt_token_ids": [5] * 41})
        with pytest.raises(InvalidRequest, match="maximum context length is 16 tokens"):
            llm.encode({"prompt_token_ids": long}, pooling_task="token_embed")

    rows = np.array([part.outputs.embedding for part in parts])
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    mean = np.array([16, 16, 5]) @ unit
    np.testing.assert_allclose(whole.outputs.embedding, mean / np.linalg.norm(mean), atol=1e-5)
    np.testing.assert_allclose(raw.outputs.embedding, np.array([16, 16, 5]) @ rows / 37, atol=1e-5)
    np.testing.assert_allclose(short.outputs.embedding, embed(TEXTS[0]), atol=1e-5)
    assert whole.prompt_token_ids == long
    assert (counts[0], sum(counts[1:])) == (2, 2)


def test_score_takes_one_text_against_many_or_each_against_its_own(embedder):
    llm, embed = embedder
    against_many = [output.outputs.score for output in llm.score(TEXTS[0], TEXTS[1:], use_tqdm=False)]
    one_by_one = [output.outputs.score for output in llm.score(TEXTS[:2], TEXTS[1:], use_tqdm=False)]

    np.testing.assert_allclose(against_many, [embed(TEXTS[0]) @ embed(text) for text in TEXTS[1:]], atol=1e-5)
    np.testing.assert_allclose(one_by_one, [embed(TEXTS[i]) @ embed(TEXTS[i + 1]) for i in range(2)], atol=1e-5)


def test_the_page_embeds_and_scores(embedder):
    imported, _, made, *lines = Page.of("docs/pooling.md").block("LLM(", language="python").splitlines()

    printed = []

    exec("\n".join(lines), {"llm": embedder[0], "print": printed.append})

    assert imported == "from tetrad import LLM"
    assert made.startswith("llm = LLM(model=")
    length, *scores = printed
    assert (length, len(scores)) == (32, 2)
    assert all(-1 <= score <= 1 + 1e-6 for score in scores)


def test_encode_without_a_task_does_the_models_first(embedder):
    llm, embed = embedder
    [output] = llm.encode(TEXTS[0], use_tqdm=False)

    np.testing.assert_allclose(output.outputs.data, embed(TEXTS[0]), atol=1e-5)


def test_encode_returns_a_row_for_each_token(embedder):
    llm, _ = embedder
    [output] = llm.encode({"prompt_token_ids": [5, 6, 7]}, pooling_task="token_embed", use_tqdm=False)

    assert np.array(output.outputs.data).shape == (3, 32)


def test_an_engine_steps_through_pooling_requests(embedder):
    llm, embed = embedder
    engine = llm.llm_engine
    for place, text in enumerate(TEXTS):
        engine.add_request(str(place), text, tetrad.PoolingParams(task="embed"))
    with pytest.raises(InvalidRequest, match="context length"):
        engine.add_request("long", {"prompt_token_ids": [5] * 600}, tetrad.PoolingParams(task="embed"))

    found = {}
    while engine.has_unfinished_requests():
        found |= {output.request_id: output.outputs.data for output in engine.step()}

    assert found.keys() == {"0", "1", "2"}
    for place, text in enumerate(TEXTS):
        np.testing.assert_allclose(found[str(place)], embed(text), atol=1e-5)


def test_a_pooling_request_that_is_aborted_has_no_output(embedder):
    engine = embedder[0].llm_engine
    engine.add_request("gone", TEXTS[0], tetrad.PoolingParams(task="embed"))

    engine.abort_request("gone")

    assert not engine.has_unfinished_requests()


def test_the_progress_bar_counts_prompts(embedder):
    counts = []

    class Bar:
        def __init__(self, total, **_):
            counts.append(total)

        def update(self, number=1):
            counts.append(number)

        def close(self):
            pass

    embedder[0].embed(TEXTS, use_tqdm=Bar)

    assert counts[0] == 3
    assert sum(counts[1:]) == 3


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda llm: llm.classify("w1"), Unsupported, "Unsupported task: 'classify'"),
        (lambda llm: llm.generate("w1"), InvalidRequest, "does not generate: it pools"),
        (lambda llm: llm.score(["w1", "w2"], ["w1"] * 3), InvalidRequest, "either 1:1, 1:N or N:N"),
        (lambda llm: llm.embed(["w1"], pooling_params=tetrad.PoolingParams(task="classify")), InvalidRequest, "'classify'"),
    ],
)
def test_what_the_model_does_not_have_is_refused(embedder, call, error, text):
    with pytest.raises(error, match=text):
        call(embedder[0])


@pytest.mark.usefixtures("services_here")
def test_an_encoder_computes_prompts_whole_whatever_the_limit_for_long_ones(tmp_path):
    embed = save_sentence_encoder(tmp_path)

    with tetrad.LLM(str(tmp_path), device="cpu", long_prefill_token_threshold=2) as llm:
        outputs = llm.embed(TEXTS, use_tqdm=False)

    for text, output in zip(TEXTS, outputs, strict=True):
        np.testing.assert_allclose(output.outputs.embedding, embed(text), atol=1e-5)


@pytest.mark.usefixtures("services_here")
def test_classify_and_score_use_the_models_classifier(tmp_path):
    reference, score = save_cross_encoder(tmp_path)

    with tetrad.LLM(str(tmp_path), device="cpu") as llm:
        [classes] = llm.classify("w1 w2", use_tqdm=False)
        [scored] = llm.score("w1", "w2", use_tqdm=False)
        [reward] = llm.reward("w1 w2", pooling_params=tetrad.PoolingParams(use_activation=False), use_tqdm=False)

    with torch.no_grad():
        expected = torch.sigmoid(reference(torch.tensor([ids_of("w1 w2")])).logits[0])
    np.testing.assert_allclose(classes.outputs.probs, expected.numpy(), atol=1e-5)
    rewards = torch.tensor(reward.outputs.data).flatten()
    np.testing.assert_allclose(torch.sigmoid(rewards[:1]).numpy(), expected.numpy(), atol=1e-5)
    assert scored.outputs.score == pytest.approx(score("w1", "w2"), abs=1e-5)


@pytest.mark.usefixtures("services_here")
def test_late_interaction_scores_by_the_best_token_of_the_document(tmp_path):
    embed = save_colbert(tmp_path, width=16)

    with tetrad.LLM(str(tmp_path), device="cpu") as llm:
        scores = [output.outputs.score for output in llm.score(TEXTS[0], TEXTS[1:], use_tqdm=False)]

    query = embed(ids_of(TEXTS[0]))
    expected = [(query @ embed(ids_of(text)).T).max(axis=1).sum() for text in TEXTS[1:]]
    np.testing.assert_allclose(scores, expected, atol=1e-4)


@pytest.mark.usefixtures("services_here")
def test_a_reranker_of_two_tokens_scores_a_query_with_each_document(tmp_path):
    """Qwen3-Reranker, as published: a generator whose logits of "no" and "yes" are compared."""
    reference = save_decoder(tmp_path, Qwen3ForCausalLM, Qwen3Config(**SIZES))
    save_tokenizer(tmp_path)
    overrides = {
        "architectures": ["Qwen3ForSequenceClassification"],
        "classifier_from_token": ["w90", "w91"],
        "is_original_qwen3_reranker": True,
    }

    with tetrad.LLM(str(tmp_path), device="cpu", runner="pooling", hf_overrides=overrides) as llm:
        outputs = llm.score(TEXTS[0], TEXTS[1:], use_tqdm=False)

    for text, output in zip(TEXTS[1:], outputs, strict=True):
        assert output.prompt_token_ids == ids_of(TEXTS[0]) + ids_of(text)[1:]
        with torch.no_grad():
            no, yes = reference(torch.tensor([output.prompt_token_ids])).logits[0, -1, [94, 95]]
        assert output.outputs.score == pytest.approx(torch.sigmoid(yes - no).item(), abs=1e-5)


@pytest.mark.usefixtures("services_here")
def test_a_chat_template_writes_the_pairs_of_a_reranker(tmp_path):
    reference = save_decoder(tmp_path, Qwen3ForSequenceClassification, Qwen3Config(**SIZES, num_labels=1))
    save_tokenizer(tmp_path)
    template = (
        "w50 {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }} "
        "w51 {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }} w52"
    )

    with tetrad.LLM(str(tmp_path), device="cpu") as llm:
        outputs = llm.score(TEXTS[0], TEXTS[1:], use_tqdm=False, chat_template=template)
        [cut] = llm.score(
            TEXTS[0], TEXTS[2], use_tqdm=False, chat_template=template, tokenization_kwargs={"truncate_prompt_tokens": 10}
        )
        with pytest.raises(InvalidRequest, match="leave no room for the document in the 8 tokens"):
            llm.score("w1", "w2", chat_template="{# full #}" + "w1 " * 8, tokenization_kwargs={"truncate_prompt_tokens": 8})

    for text, output in zip(TEXTS[1:], outputs, strict=True):
        assert output.prompt_token_ids == ids_of(f"w50 {text} w51 {TEXTS[0]} w52")
        with torch.no_grad():
            logit = reference(torch.tensor([output.prompt_token_ids])).logits[0, 0]
        assert output.outputs.score == pytest.approx(torch.sigmoid(logit).item(), abs=1e-5)
    assert cut.prompt_token_ids == ids_of(f"w50 w0 w1 w51 {TEXTS[0]} w52")


def test_an_embedder_refuses_a_template_for_pairs(embedder):
    with pytest.raises(InvalidRequest, match="instruction and chat_template are for cross-encoders"):
        embedder[0].score("w1", "w2", chat_template="{{ messages[0].content }}")


@pytest.mark.usefixtures("services_here")
def test_each_prompt_has_the_embedding_of_its_adapter(tmp_path):
    """Qwen3-Embedding without and with adapters in one call; each embedding is that of a checkpoint with its adapter merged."""
    model = tmp_path / "model"
    reference = save_decoder(model, Qwen3Model, Qwen3Config(**SIZES, architectures=["Qwen3ForCausalLM"]))
    save_tokenizer(model)
    save_modules(model, {"pooling_mode_lasttoken": True}, normalize=True)
    paths = [save_lora(tmp_path / str(seed), reference, "q_proj|v_proj|down_proj", seed=seed) for seed in (1, 2)]
    adapters = [None, *(LoRARequest(str(path), number, str(path)) for number, path in enumerate(paths, 1))]

    with tetrad.LLM(str(model), device="cpu", runner="pooling", enable_lora=True, max_loras=2, max_lora_rank=8) as llm:
        outputs = llm.embed([TEXTS[2]] * 3, lora_request=adapters, use_tqdm=False)
        [scored] = llm.score(*TEXTS[1:], lora_request=adapters[1], use_tqdm=False)

    embeddings = []
    for output, changed in zip(outputs, [reference, *(merged(reference, path) for path in paths)], strict=True):
        with torch.no_grad():
            rows = [changed(torch.tensor([ids_of(text)])).last_hidden_state[0, -1] for text in TEXTS]
        embeddings.append([(row / row.norm()).numpy() for row in rows])
        np.testing.assert_allclose(output.outputs.embedding, embeddings[-1][2], atol=1e-5)
    assert np.abs(embeddings[0][2] - embeddings[1][2]).max() > 0.01
    assert scored.outputs.score == pytest.approx(float(embeddings[1][1] @ embeddings[1][2]), abs=1e-5)


@pytest.mark.usefixtures("services_here")
def test_async_llm_encodes(tmp_path):
    save_encoder(tmp_path, ENCODERS["bert"])

    async def run():
        async with tetrad.AsyncLLM.from_engine_args(tetrad.AsyncEngineArgs(str(tmp_path), device="cpu")) as llm:
            return [each async for each in llm.encode("w1", tetrad.PoolingParams(task="embed"), "r")]

    [output] = asyncio.run(run())

    assert len(output.outputs.data) == 32


@pytest.mark.usefixtures("services_here")
def test_a_generator_that_embeds_takes_drafts_of_lookups(tmp_path):
    prompt, sampling = "abc abc abc abc abc", tetrad.SamplingParams(max_tokens=30, temperature=0, logit_bias={67: 40.0})
    directory = str(save_tiny_model(tmp_path))
    both = {"device": "cpu", "runner": "generate", "convert": "embed"}
    config = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 2}

    with tetrad.LLM(directory, speculative_config=config, **both) as llm:
        [drafted] = llm.generate(prompt, sampling, use_tqdm=False)
        [embedding] = llm.embed(prompt, use_tqdm=False)
        num_drafts = value_of(llm, "tetrad:spec_decode_num_draft_tokens")
    with tetrad.LLM(directory, **both) as llm:
        [plain] = llm.generate(prompt, sampling, use_tqdm=False)

    assert drafted.outputs[0].token_ids == plain.outputs[0].token_ids
    assert num_drafts > 0
    assert len(embedding.outputs.embedding) == 64


@pytest.mark.usefixtures("services_here")
def test_a_generator_embeds_and_generates_beside_each_other(tmp_path):
    prompts = ["a short text", "x y " * 100]
    directory = str(save_tiny_model(tmp_path))
    sampling = tetrad.SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)

    with tetrad.LLM(directory, device="cpu", runner="generate", convert="embed", max_num_batched_tokens=64) as llm:
        embeddings = [output.outputs.embedding for output in llm.embed(prompts, use_tqdm=False)]
        tokens = [output.outputs[0].token_ids for output in llm.generate(prompts, sampling, use_tqdm=False)]
    with tetrad.LLM(directory, device="cpu") as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(prompts, sampling, use_tqdm=False)]
        with pytest.raises(InvalidRequest, match="does not support pooling"):
            llm.embed(prompts, use_tqdm=False)

    assert tokens == expected
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)
