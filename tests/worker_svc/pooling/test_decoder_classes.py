"""Decoders that classify, against transformers in float32: classes, rewards and scores; whole prompts and chunks."""

import json

import numpy as np
import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

from tests.worker_svc.families.tiny_models import change_config
from tests.worker_svc.pooling.decoders import (
    LENGTHS,
    SIZES,
    VOCAB_SIZE,
    hidden_of,
    run_in_chunks,
    runner_of,
    save_decoder,
)
from tests.worker_svc.pooling.runs import load, prompts_of
from tetrad.worker_svc.core.pooling import PoolingSpec

CLASSIFIERS = {
    "llama": (tf.LlamaConfig, tf.LlamaForSequenceClassification, {}),
    "qwen2": (tf.Qwen2Config, tf.Qwen2ForSequenceClassification, {}),
    "qwen3": (tf.Qwen3Config, tf.Qwen3ForSequenceClassification, {}),
    "mistral": (tf.MistralConfig, tf.MistralForSequenceClassification, {"sliding_window": 9}),
    "gemma2": (tf.Gemma2Config, tf.Gemma2ForSequenceClassification, {"sliding_window": 9, "query_pre_attn_scalar": 16}),
}


@pytest.mark.parametrize("family", CLASSIFIERS)
@pytest.mark.parametrize("num_labels", [1, 3])
def test_sequence_classifiers_judge_the_last_token(tmp_path, family, num_labels):
    make_config, make_model, changes = CLASSIFIERS[family]
    reference = save_decoder(tmp_path, make_model, make_config(**SIZES | changes, num_labels=num_labels))
    model, prompts = load(tmp_path), prompts_of(LENGTHS)
    num_groups = len(model.kv_groups(4))

    answers = run_in_chunks(runner_of(model), prompts, PoolingSpec("classify"), 16, num_groups)

    assert model.info.pooling.tasks[0] == "classify"
    for ids, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            logits = reference(torch.tensor([ids])).logits[0]
        expected = torch.sigmoid(logits) if num_labels == 1 else torch.softmax(logits, -1)
        np.testing.assert_allclose(answer, expected.numpy(), atol=1e-5)


OF_GPT = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_labels": 3}
NEO = OF_GPT | {"attention_types": [[["global", "local"], 1]], "window_size": 9}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (tf.Qwen3ForTokenClassification, tf.Qwen3Config(**SIZES, num_labels=3)),
        (tf.GPT2ForTokenClassification, tf.GPT2Config(**OF_GPT)),
        (tf.GPTNeoForTokenClassification, tf.GPTNeoConfig(**NEO)),
        (tf.GPTNeoXForTokenClassification, tf.GPTNeoXConfig(**OF_GPT, intermediate_size=48)),
        (tf.FalconForTokenClassification, tf.FalconConfig(**OF_GPT)),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_token_classifiers_judge_every_token(kind, config, tmp_path):
    reference = save_decoder(tmp_path, kind, config)
    model, prompts = load(tmp_path), prompts_of([1, 30])

    answers = run_in_chunks(runner_of(model), prompts, PoolingSpec("token_classify"), 8, len(model.kv_groups(4)))

    for ids, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            expected = reference(torch.tensor([ids])).logits[0].softmax(-1)
        np.testing.assert_allclose(answer, expected.numpy(), atol=1e-5)


def save_reward_model(directory, architecture, num_labels):
    """Write Qwen2 with two layers for scores; return transformers' decoder and the logits of hidden states."""
    reference = save_decoder(directory, tf.Qwen2Model, tf.Qwen2Config(**SIZES))
    torch.manual_seed(1)
    head = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, num_labels))
    tensors = {f"model.{name}": tensor for name, tensor in load_file(directory / "model.safetensors").items()}
    tensors |= {f"score.{name}": tensor.detach() for name, tensor in head.named_parameters()}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    change_config(directory, architectures=[architecture])
    return reference, head


def test_a_reward_model_scores_every_token_without_an_activation(tmp_path):
    reference, head = save_reward_model(tmp_path, "Qwen2ForRewardModel", 1)
    [prompt] = prompts_of([20])

    [answer] = run_in_chunks(runner_of(load(tmp_path)), [prompt], PoolingSpec("token_classify"), 8)

    with torch.no_grad():
        expected = head(hidden_of(reference, prompt))
    np.testing.assert_allclose(answer, expected.numpy(), atol=1e-5)


def test_a_process_reward_model_judges_the_steps_that_a_token_ends(tmp_path):
    reference, head = save_reward_model(tmp_path, "Qwen2ForProcessRewardModel", 2)
    prompt = [5, 6, 99, 7, 8, 9, 99, 4]
    model = load(tmp_path, pooler_config_json='{"step_tag_id": 99}')

    [answer] = run_in_chunks(runner_of(model), [prompt], PoolingSpec("token_classify"), 3)
    [column] = run_in_chunks(
        runner_of(model), [prompt], PoolingSpec("token_classify", False, step_tag_id=4, returned_token_ids=(1,))
    )

    with torch.no_grad():
        logits = head(hidden_of(reference, prompt))
    np.testing.assert_allclose(answer, logits.softmax(-1)[[2, 6]].numpy(), atol=1e-5)
    np.testing.assert_allclose(column, logits[[7], 1:].numpy(), atol=1e-4)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_reranker_of_two_tokens_compares_their_logits(tmp_path, is_tied):
    reference = save_decoder(tmp_path, tf.Qwen3ForCausalLM, tf.Qwen3Config(**SIZES, tie_word_embeddings=is_tied))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"no": 17, "yes": 40}}, "added_tokens": []}))
    overrides = {
        "architectures": ["Qwen3ForSequenceClassification"],
        "classifier_from_token": ["no", "yes"],
        "is_original_qwen3_reranker": True,
    }
    [prompt] = prompts_of([20])

    model = load(tmp_path, hf_overrides_json=json.dumps(overrides))
    [answer] = run_in_chunks(runner_of(model), [prompt], PoolingSpec("classify"), 8)

    with torch.no_grad():
        no, yes = reference(torch.tensor([prompt])).logits[0, -1, [17, 40]]
    assert answer == pytest.approx([torch.softmax(torch.stack([no, yes]), 0)[1].item()], abs=1e-5)
    assert model.info.pooling.labels == ("LABEL_0",)


ALL_LENGTHS = (1, 512, *np.random.default_rng(1).integers(1, 512, 62).tolist())


@pytest.mark.parametrize("chunk", [None, 100])
def test_sixty_four_prompts_of_all_lengths_have_the_classes_of_transformers(tmp_path, chunk):
    reference = save_decoder(tmp_path, tf.Qwen3ForSequenceClassification, tf.Qwen3Config(**SIZES, num_labels=3))
    prompts = prompts_of(ALL_LENGTHS)

    answers = run_in_chunks(runner_of(load(tmp_path), 6000), prompts, PoolingSpec("classify"), chunk)

    for ids, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            expected = reference(torch.tensor([ids])).logits[0].softmax(-1)
        np.testing.assert_allclose(answer, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("chunk", [pytest.param(None, marks=pytest.mark.exhaustive), 100])
def test_sixty_four_prompts_of_all_lengths_have_the_rewards_of_transformers(tmp_path, chunk):
    reference, head = save_reward_model(tmp_path, "Qwen2ForRewardModel", 1)
    prompts = prompts_of(ALL_LENGTHS)

    answers = run_in_chunks(runner_of(load(tmp_path), 6000), prompts, PoolingSpec("token_classify"), chunk)

    for ids, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            expected = head(hidden_of(reference, ids))
        np.testing.assert_allclose(answer, expected.numpy(), atol=2e-5)


@pytest.mark.parametrize("chunk", [pytest.param(None, marks=pytest.mark.exhaustive), 100])
def test_sixty_four_prompts_of_all_lengths_have_the_scores_of_two_tokens(tmp_path, chunk):
    reference = save_decoder(tmp_path, tf.Qwen3ForCausalLM, tf.Qwen3Config(**SIZES))
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"no": 17, "yes": 40}}, "added_tokens": []}))
    overrides = {
        "architectures": ["Qwen3ForSequenceClassification"],
        "classifier_from_token": ["no", "yes"],
        "is_original_qwen3_reranker": True,
    }
    model, prompts = load(tmp_path, hf_overrides_json=json.dumps(overrides)), prompts_of(ALL_LENGTHS)

    answers = run_in_chunks(runner_of(model, 6000), prompts, PoolingSpec("classify"), chunk)

    for ids, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            no, yes = reference(torch.tensor([ids])).logits[0, -1, [17, 40]]
        assert answer == pytest.approx([torch.sigmoid(yes - no).item()], abs=2e-5)
