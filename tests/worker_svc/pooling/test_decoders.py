"""Decoders that embed, against transformers in float32; options of pooling; whole prompts and chunks."""

import json

import numpy as np
import pytest
import torch
import transformers as tf

from tests.worker_svc.families.gguf_files import write_gguf
from tests.worker_svc.families.tiny_models import change_config, save_family
from tests.worker_svc.pooling.checkpoints import save_modules
from tests.worker_svc.pooling.decoders import (
    BLOCK_SIZE,
    LENGTHS,
    NO_CACHED,
    SIZES,
    hidden_of,
    new_request,
    run_in_chunks,
    runner_of,
    save_decoder,
)
from tests.worker_svc.pooling.runs import load, prompts_of, run
from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.plan import SchedulerOutput
from tetrad.worker_svc.core.pooling import PoolingSpec
from tetrad.worker_svc.core.result import finished

RAW = PoolingSpec("embed", use_activation=False)


def save_embedder(directory, mode=None, **modules):
    """Write a Qwen3-Embedding: a generator's architecture, names without "model.", sentence-transformers' files."""
    reference = save_decoder(directory, tf.Qwen3Model, tf.Qwen3Config(**SIZES))
    change_config(directory, architectures=["Qwen3ForCausalLM"])
    if mode is not None:
        save_modules(directory, {mode: True}, **modules)
    return reference


@pytest.mark.parametrize("chunk", [None, 16])
@pytest.mark.parametrize(
    ("mode", "pool"),
    [
        ("pooling_mode_lasttoken", lambda rows: rows[-1]),
        ("pooling_mode_mean_tokens", lambda rows: rows.mean(dim=0)),
        ("pooling_mode_cls_token", lambda rows: rows[0]),
    ],
)
def test_a_generators_architecture_with_modules_embeds(tmp_path, mode, pool, chunk):
    reference = save_embedder(tmp_path, mode, normalize=True)
    model, prompts = load(tmp_path), prompts_of(LENGTHS)

    answers = run_in_chunks(runner_of(model), prompts, PoolingSpec("embed"), chunk)

    assert model.info.pooling.tasks == ("embed", "token_embed")
    assert model.info.pooling.is_causal
    assert model.info.pooling.needs_all_tokens == (mode != "pooling_mode_lasttoken")
    for ids, answer in zip(prompts, answers, strict=True):
        expected = torch.nn.functional.normalize(pool(hidden_of(reference, ids)), dim=-1).numpy()
        np.testing.assert_allclose(answer, expected, atol=1e-5)


@pytest.mark.parametrize("pooling", ["LAST", "MEAN"])
def test_sixty_four_prompts_of_all_lengths_equal_those_of_transformers_whole_and_in_chunks(tmp_path, pooling):
    reference = save_embedder(tmp_path)
    model = load(tmp_path, runner="pooling", pooler_config_json=json.dumps({"pooling_type": pooling}))
    runner, prompts = runner_of(model, 6000), prompts_of([1, 512, *np.random.default_rng(1).integers(1, 512, 62)])

    whole = run_in_chunks(runner, prompts, PoolingSpec("embed"))
    chunked = run_in_chunks(runner, prompts, PoolingSpec("embed"), 100)
    alone = [run_in_chunks(runner, [ids], PoolingSpec("embed"))[0] for ids in prompts[:6]]

    np.testing.assert_allclose(chunked, whole, atol=2e-6)
    np.testing.assert_allclose(alone, whole[:6], atol=2e-6)
    for ids, answer in zip(prompts, whole, strict=True):
        rows = hidden_of(reference, ids)
        expected = torch.nn.functional.normalize(rows[-1] if pooling == "LAST" else rows.mean(dim=0), dim=-1).numpy()
        np.testing.assert_allclose(answer, expected, atol=1e-5)
        assert answer @ expected >= 0.99999


@pytest.mark.parametrize("chunk", [None, 16])
def test_embeddings_of_tokens_are_all_hidden_states(tmp_path, chunk):
    reference = save_embedder(tmp_path)
    prompts = prompts_of(LENGTHS)
    model = load(tmp_path, runner="pooling")

    answers = run_in_chunks(runner_of(model), prompts, PoolingSpec("token_embed", use_activation=False), chunk)

    for ids, answer in zip(prompts, answers, strict=True):
        np.testing.assert_allclose(answer, hidden_of(reference, ids).numpy(), atol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "gpt_j", "codegen", "gpt_neo", "gpt_neox", "falcon 40b", "mamba2"])
def test_files_without_the_prefix_of_the_family_embed(tmp_path, family):
    """As transformers writes a model without its output layer: h.0 for transformer.h.0, layers.0 for gpt_neox.layers.0."""
    reference = save_family(tmp_path / "whole", family).base_model
    reference.save_pretrained(tmp_path / "bare")
    prompts = prompts_of(LENGTHS)
    model = load(tmp_path / "bare")

    answers = run_in_chunks(runner_of(model), prompts, RAW)

    for ids, answer in zip(prompts, answers, strict=True):
        np.testing.assert_allclose(answer, hidden_of(reference, ids)[-1].numpy(), atol=1e-3)


def test_one_runner_generates_and_embeds_in_one_step(tmp_path):
    reference = save_decoder(tmp_path, tf.Qwen3ForCausalLM, tf.Qwen3Config(**SIZES))
    embedded, continued = prompts_of([20, 9])
    model = load(tmp_path, runner="generate", convert="embed")
    requests = [new_request(0, embedded, RAW, 1), new_request(1, continued, None, 11)]

    result = finished(runner_of(model).execute(SchedulerOutput(0, requests, NO_CACHED)))

    with torch.no_grad():
        expected = reference.model(torch.tensor([embedded])).last_hidden_state[0, -1]
        token = reference(torch.tensor([continued])).logits[0, -1].argmax()
    assert model.info.pooling.generates
    assert result.token_ids.tolist() == [token.item()]
    assert [each.handle for each in result.pooled] == [0]
    np.testing.assert_allclose(result.pooled[0].values, expected.numpy(), atol=1e-4)


def test_a_request_that_the_model_is_not_for_fails_alone(tmp_path):
    save_embedder(tmp_path)
    runner = runner_of(load(tmp_path, runner="pooling"))
    requests = [new_request(0, [5, 6], RAW, 1), new_request(1, [5, 6], None, 2)]

    result = finished(runner.execute(SchedulerOutput(0, requests, NO_CACHED)))

    assert [each.handle for each in result.pooled] == [0]
    assert [(handle, error.message) for handle, error in result.failures] == [(1, "The model pools and does not generate.")]


def test_a_generator_refuses_pooling(tmp_path):
    save_embedder(tmp_path, "pooling_mode_lasttoken", normalize=True)
    change_config(tmp_path, tie_word_embeddings=True)
    runner = runner_of(load(tmp_path, runner="generate"))

    result = finished(runner.execute(SchedulerOutput(0, [new_request(0, [5, 6], RAW, 1)], NO_CACHED)))

    assert [(handle, error.message) for handle, error in result.failures] == [(0, "The model generates and does not pool.")]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"runner": "draft"}, "runner 'draft' is not supported"),
        ({"convert": "score"}, "convert 'score' is not supported"),
        ({"runner": "pooling", "convert": "none"}, "needs convert embed or classify"),
        ({"pooler_config_json": '{"pooling_type": "MEAN"}'}, "pooler_config is for models that pool"),
        ({"runner": "pooling", "pooler_config_json": '{"pooling_type": "MAX"}'}, "pooling_type must be one of CLS, LAST"),
        ({"runner": "pooling", "pooler_config_json": '{"normalize": true}'}, "`normalize` was removed; use `use_activation`"),
        ({"runner": "pooling", "pooler_config_json": '{"step_tag_id": 3}'}, "need tok_pooling_type STEP"),
        ({"runner": "pooling", "pooler_config_json": '{"task": "classify"}'}, "unsupported task: 'classify'"),
        ({"runner": "pooling", "pooler_config_json": '{"dimensions": 4}'}, "does not support Matryoshka"),
        ({"runner": "pooling", "pooler_config_json": '{"max_embed_len": 0}'}, "max_embed_len must be a whole number"),
        ({"runner": "pooling", "pooler_config_json": '{"logit_sigma": 0}'}, "logit_sigma must be a number other than 0"),
        ({"convert": "classify"}, "no tensor score.weight"),
    ],
)
def test_options_that_contradict_the_model_are_refused(tmp_path, options, text):
    save_embedder(tmp_path)

    with pytest.raises(ModelError, match=text):
        load(tmp_path, **options)


def visible(length):
    """Return a mask with which every token sees every other one."""
    return torch.zeros(1, 1, length, length)


@pytest.mark.parametrize("family", ["Qwen2", "Llama"])
def test_a_decoder_that_is_not_causal_sees_in_both_directions(tmp_path, family):
    reference = save_decoder(tmp_path, getattr(tf, f"{family}Model"), getattr(tf, f"{family}Config")(**SIZES))
    change_config(tmp_path, is_causal=False)
    save_modules(tmp_path, {"pooling_mode_mean_tokens": True}, normalize=False)
    model, prompts = load(tmp_path), prompts_of([1, 7, 40, 7])

    pooled = run(model, prompts, PoolingSpec("embed")).pooled

    assert not model.info.pooling.is_causal
    assert model.kv_groups(16) == ()
    for ids, each in zip(prompts, pooled, strict=True):
        with torch.no_grad():
            expected = reference(torch.tensor([ids]), attention_mask=visible(len(ids))).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(each.values, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("family", ["mamba", "jamba", "lfm2"])
def test_a_model_with_states_does_not_see_in_both_directions(tmp_path, family):
    save_family(tmp_path, family)
    change_config(tmp_path, is_causal=False)

    with pytest.raises(ModelError, match="A model with states cannot see in both directions"):
        load(tmp_path, runner="pooling")


def test_embedding_gemma_has_windows_to_both_sides_and_dense_layers(tmp_path):
    sizes = SIZES | {"num_hidden_layers": 6, "sliding_window": 8, "query_pre_attn_scalar": 16, "layer_types": None}
    config = tf.Gemma3TextConfig(**sizes, use_bidirectional_attention=True)
    reference = save_decoder(tmp_path, tf.Gemma3TextModel, config)
    change_config(tmp_path, sliding_window=8)  # as published; transformers writes what it has made of it
    dense = torch.nn.Linear(32, 8, bias=False)
    save_modules(tmp_path, {"pooling_mode_mean_tokens": True}, normalize=True, dense=(dense, "Identity"))
    model, prompts = load(tmp_path), prompts_of([1, 7, 40])

    pooled = run(model, prompts, PoolingSpec("embed")).pooled

    for ids, each in zip(prompts, pooled, strict=True):
        with torch.no_grad():
            expected = dense(hidden_of(reference, ids).mean(0))
        np.testing.assert_allclose(each.values, (expected / expected.norm()).numpy(), atol=1e-5)


def test_a_decoder_that_is_not_causal_does_not_generate(tmp_path):
    save_decoder(tmp_path, tf.Qwen2ForCausalLM, tf.Qwen2Config(**SIZES))
    change_config(tmp_path, is_causal=False)

    with pytest.raises(ModelError, match="it pools and does not generate"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["gpt_neox", "mamba", "mamba2", "deepseek_v3", "bloom"])
def test_every_decoder_pools(name, tmp_path):
    """Its output layer, whatever the files call it, is not read."""
    reference, [ids] = save_family(tmp_path, name), prompts_of((20,))
    model = load(tmp_path, runner="pooling")

    [embedding] = run_in_chunks(runner_of(model), [ids], RAW, num_groups=len(model.kv_groups(BLOCK_SIZE)))

    hidden = reference(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1]
    np.testing.assert_allclose(embedding, hidden[0, -1].detach(), atol=1e-3)


def test_a_gguf_file_pools_without_its_output_layer(tmp_path):
    reference, [ids] = save_family(tmp_path, "llama"), prompts_of((20,))
    write_gguf(tmp_path / "m.gguf", "llama", reference)
    model = load(tmp_path / "m.gguf", runner="pooling", dtype="float32")

    [embedding] = run_in_chunks(runner_of(model), [ids], RAW)

    hidden = reference(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1]
    np.testing.assert_allclose(embedding, hidden[0, -1].detach(), atol=1e-3)
