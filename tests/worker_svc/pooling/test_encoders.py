"""Encoders against transformers in float32: tiny random checkpoints of every family, alone and in batches of mixed lengths."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GteConfig

from tests.worker_svc.pooling.checkpoints import CLASSIFIERS, ENCODERS, VOCAB_SIZE, save_colbert, save_encoder, save_modules
from tests.worker_svc.pooling.runs import load, load_with, prompts_of, run
from tetrad.services.errors import ModelError
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.pooling import PoolingSpec
from tetrad.worker_svc.families.encoders import read_encoder_config
from tetrad.worker_svc.native.team import Team

LENGTHS = (1, 2, 7, 7, 20, 63, 7, 1)


def hidden_of(model, ids, **inputs):
    with torch.no_grad():
        return model(torch.tensor([ids]), **inputs).last_hidden_state[0]


@pytest.mark.parametrize("family", ENCODERS)
def test_embeddings_of_tokens_equal_those_of_transformers_whatever_the_batch(tmp_path, family):
    reference = save_encoder(tmp_path, ENCODERS[family])
    model, prompts = load(tmp_path), prompts_of(LENGTHS)
    spec = PoolingSpec("token_embed", use_activation=False)

    together = [each.values for each in run(model, prompts, spec).pooled]
    alone = [run(model, [prompt], spec).pooled[0].values for prompt in prompts]

    for prompt, batched, single in zip(prompts, together, alone, strict=True):
        expected = hidden_of(reference, prompt).numpy()
        np.testing.assert_allclose(batched, expected, atol=1e-4)
        np.testing.assert_allclose(single, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("mode", "pool"),
    [
        ("pooling_mode_cls_token", lambda rows: rows[0]),
        ("pooling_mode_mean_tokens", lambda rows: rows.mean(dim=0)),
        ("pooling_mode_lasttoken", lambda rows: rows[-1]),
    ],
)
@pytest.mark.parametrize("normalize", [True, False])
def test_a_sentence_transformers_model_pools_as_its_files_say(tmp_path, mode, pool, normalize):
    reference = save_encoder(tmp_path, ENCODERS["bert"])
    save_modules(tmp_path, {mode: True}, normalize=normalize)
    [prompt] = prompts_of([12])

    [pooled] = run(load(tmp_path), [prompt], PoolingSpec("embed")).pooled

    expected = pool(hidden_of(reference, prompt))
    expected = expected / expected.norm() if normalize else expected
    np.testing.assert_allclose(pooled.values, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("family", CLASSIFIERS)
@pytest.mark.parametrize("num_labels", [1, 3])
def test_classes_equal_those_of_transformers(tmp_path, family, num_labels):
    reference = save_encoder(tmp_path, CLASSIFIERS[family], num_labels=num_labels)
    model, prompts = load(tmp_path), prompts_of([5, 9, 5])
    [task] = model.info.pooling.tasks

    pooled = run(model, prompts, PoolingSpec(task)).pooled

    for prompt, each in zip(prompts, pooled, strict=True):
        with torch.no_grad():
            logits = reference(torch.tensor([prompt])).logits[0]
        expected = torch.sigmoid(logits) if num_labels == 1 else torch.softmax(logits, -1)
        np.testing.assert_allclose(each.values, expected.numpy(), atol=1e-4)


def test_the_classifier_of_a_modernbert_has_its_own_activation(tmp_path):
    reference = save_encoder(tmp_path, CLASSIFIERS["modernbert"], num_labels=1, classifier_activation="relu")
    [prompt] = prompts_of([9])

    [pooled] = run(load(tmp_path), [prompt], PoolingSpec("classify", use_activation=False)).pooled

    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0]
    np.testing.assert_allclose(pooled.values, expected.numpy(), atol=1e-4)


PUBLISHED_NEW = {
    "layer_norm_type": "layer_norm",
    "logn_attention_clip1": False,
    "logn_attention_scale": False,
    "model_type": "new",
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "rope_scaling": None,
    "rope_theta": 20000,
    "unpad_inputs": False,
}
"""What the config.json of gte-multilingual-base says beyond transformers' GTE."""


def rename_gte(directory, architecture, **changes):
    """Make a checkpoint of transformers' GTE one of GTE's own implementation: the same tensors under another config.json."""
    config = json.loads((directory / "config.json").read_text())
    del config["rope_parameters"]
    (directory / "config.json").write_text(json.dumps(config | PUBLISHED_NEW | changes | {"architectures": [architecture]}))
    if architecture != "NewModel":
        tensors = load_file(directory / "model.safetensors")
        renamed = {
            name if name.startswith("classifier.") else f"new.{name.removeprefix('gte.')}": tensors[name] for name in tensors
        }
        save_file(renamed, directory / "model.safetensors", {"format": "pt"})


def ntk_frequencies(theta, factor, dim):
    """Return what GTE's NTKScalingRotaryEmbedding computes."""
    inverse = 1.0 / ((theta * factor) ** (torch.arange(0, dim, 2).float() / dim))
    return inverse / factor ** (2 / dim)


@pytest.mark.parametrize("factor", [None, 2.0, 8.0])
@pytest.mark.parametrize("architecture", ["NewModel", "GteNewModel"])
def test_checkpoints_of_gtes_own_implementation_are_loaded(tmp_path, architecture, factor):
    rope = {"rope_theta": 20000.0, "rope_type": "default"}
    reference = save_encoder(tmp_path, ENCODERS["gte"], rope_parameters=rope)
    rename_gte(tmp_path, architecture, rope_scaling=factor and {"factor": factor, "type": "ntk"})
    if factor:  # as gte-base-en-v1.5 has it
        reference.rotary_emb.inv_freq.copy_(ntk_frequencies(20000.0, factor, 8))
    prompts = prompts_of(LENGTHS)

    pooled = run(load(tmp_path), prompts, PoolingSpec("token_embed", use_activation=False)).pooled

    for ids, each in zip(prompts, pooled, strict=True):
        np.testing.assert_allclose(each.values, hidden_of(reference, ids).numpy(), atol=1e-4)


@pytest.mark.parametrize(("architecture", "theta"), [("GteModel", 160_000.0), ("NewModel", 10_000.0)])
def test_the_base_that_a_gte_omits_is_that_of_its_implementation(architecture, theta):
    config = GteConfig().to_dict()
    del config["rope_parameters"]

    facts = read_encoder_config(config | {"architectures": [architecture]})

    assert {rope.theta for rope in facts.ropes} == {theta}


def test_classifiers_of_gtes_own_implementation_are_loaded(tmp_path):
    rope = {"rope_theta": 20000.0, "rope_type": "default"}
    reference = save_encoder(tmp_path, CLASSIFIERS["gte"], num_labels=1, rope_parameters=rope)
    rename_gte(tmp_path, "NewForSequenceClassification")
    [prompt] = prompts_of([12])

    [pooled] = run(load(tmp_path), [prompt], PoolingSpec("classify", use_activation=False)).pooled

    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0]
    np.testing.assert_allclose(pooled.values, expected.numpy(), atol=1e-4)


def test_the_second_text_of_a_pair_is_of_the_second_type(tmp_path):
    reference = save_encoder(tmp_path, CLASSIFIERS["bert"], num_labels=1)
    [prompt] = prompts_of([9])

    [pooled] = run(load(tmp_path), [prompt], PoolingSpec("classify", use_activation=False, token_type_boundary=4)).pooled

    types = torch.tensor([[0] * 4 + [1] * 5])
    with torch.no_grad():
        expected = reference(torch.tensor([prompt]), token_type_ids=types).logits[0]
    np.testing.assert_allclose(pooled.values, expected.numpy(), atol=1e-4)


def test_the_longest_prompt_leaves_out_the_positions_before_the_first(tmp_path):
    save_encoder(tmp_path, ENCODERS["roberta"], pad_token_id=1)

    assert load(tmp_path).info.max_position_embeddings == 78


def test_sentence_transformers_files_shorten_the_longest_prompt(tmp_path):
    save_encoder(tmp_path, ENCODERS["bert"])
    save_modules(tmp_path, {"pooling_mode_cls_token": True}, normalize=True, max_seq_length=40)

    assert load(tmp_path).info.max_position_embeddings == 40


def test_matryoshka_embeddings_are_cut_and_then_normalised(tmp_path):
    reference = save_encoder(tmp_path, ENCODERS["bert"], is_matryoshka=True)
    [prompt] = prompts_of([12])

    [pooled] = run(load(tmp_path), [prompt], PoolingSpec("embed", dimensions=8)).pooled

    expected = hidden_of(reference, prompt)[0, :8]
    np.testing.assert_allclose(pooled.values, (expected / expected.norm()).numpy(), atol=1e-4)


@pytest.mark.parametrize("dimensions", [8, 32])
def test_matryoshka_lengths_may_be_listed(tmp_path, dimensions):
    reference = save_encoder(tmp_path, ENCODERS["bert"], matryoshka_dimensions=[8, 32])
    [prompt] = prompts_of([12])
    model = load(tmp_path)

    [pooled] = run(model, [prompt], PoolingSpec("embed", dimensions=dimensions)).pooled
    [(_, refused)] = run(model, [prompt], PoolingSpec("embed", dimensions=9)).failures

    expected = hidden_of(reference, prompt)[0, :dimensions]
    np.testing.assert_allclose(pooled.values, (expected / expected.norm()).numpy(), atol=1e-4)
    assert refused.message == "The model only supports Matryoshka dimensions [8, 32], got 9."


def test_a_request_that_cannot_run_fails_alone(tmp_path):
    save_encoder(tmp_path, ENCODERS["bert"])
    specs = [PoolingSpec("embed"), PoolingSpec("classify"), PoolingSpec("embed", dimensions=4), PoolingSpec("embed"), None]

    result = run(load(tmp_path), [[5, 6], [5, 6], [5, 6], [VOCAB_SIZE], [5, 6]], *specs)

    assert [each.handle for each in result.pooled] == [0]
    assert [(handle, error.message) for handle, error in result.failures] == [
        (1, "Unsupported task: 'classify' Supported tasks: ['embed', 'token_embed']."),
        (
            2,
            "The model does not support Matryoshka embeddings; dimensions must be unset (received dimensions=4).",
        ),
        (3, f"Token id {VOCAB_SIZE} is not in the vocabulary of {VOCAB_SIZE} tokens."),
        (4, "The model pools and does not generate."),
    ]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"hidden_act": "mish"}, r"hidden_act 'mish' is not supported"),
        ({"is_decoder": True}, r"is_decoder True is not supported"),
        ({"layer_norm_eps": -1.0}, r"layer_norm_eps must be a finite number above 0, got '-1.0'"),
    ],
)
def test_a_config_that_encoders_do_not_have_is_refused(tmp_path, config, text):
    save_encoder(tmp_path, ENCODERS["bert"], **config)

    with pytest.raises(ModelError, match=text):
        load(tmp_path)


@pytest.mark.parametrize("mode", ["pooling_mode_max_tokens", "pooling_mode_weightedmean_tokens"])
def test_a_pooling_that_is_not_supported_is_refused(tmp_path, mode):
    save_encoder(tmp_path, ENCODERS["bert"])
    save_modules(tmp_path, {mode: True}, normalize=False)

    with pytest.raises(ModelError, match=r"pooling modes .* are not supported"):
        load(tmp_path)


@pytest.mark.parametrize("family", ENCODERS)
def test_sixty_four_prompts_of_all_lengths_equal_those_of_transformers(tmp_path, family):
    reference = save_encoder(tmp_path, ENCODERS[family], max_position_embeddings=514)  # RoBERTa's begin behind the padding's
    save_modules(tmp_path, {"pooling_mode_mean_tokens": True}, normalize=True)
    prompts = prompts_of([1, 512, *np.random.default_rng(1).integers(1, 512, 62)])
    model = load(tmp_path)

    together = [each.values for each in run(model, prompts, PoolingSpec("embed")).pooled]
    alone = [run(model, [ids], PoolingSpec("embed")).pooled[0].values for ids in prompts[:8]]

    for ids, pooled in zip(prompts, together, strict=True):
        expected = hidden_of(reference, ids).mean(0)
        expected = (expected / expected.norm()).numpy()
        np.testing.assert_allclose(pooled, expected, atol=1e-4)
        assert pooled @ expected >= 0.99999
    np.testing.assert_array_equal(together[:8], alone)


@pytest.mark.parametrize("family", CLASSIFIERS)
def test_sixty_four_prompts_of_all_lengths_have_the_classes_of_transformers(tmp_path, family):
    reference = save_encoder(tmp_path, CLASSIFIERS[family], num_labels=3, max_position_embeddings=514)
    prompts = prompts_of([1, 512, *np.random.default_rng(1).integers(1, 512, 62)])
    model = load(tmp_path)

    pooled = run(model, prompts, PoolingSpec(model.info.pooling.tasks[0])).pooled

    for ids, each in zip(prompts, pooled, strict=True):
        with torch.no_grad():
            expected = reference(torch.tensor([ids])).logits[0].softmax(-1).numpy()
        np.testing.assert_allclose(each.values, expected, atol=1e-4)


def test_sixty_four_pairs_of_all_lengths_have_the_scores_of_transformers(tmp_path):
    reference = save_encoder(tmp_path, CLASSIFIERS["bert"], num_labels=1, max_position_embeddings=514)
    lengths = [2, 512, *np.random.default_rng(1).integers(2, 512, 62)]
    prompts, boundaries = prompts_of(lengths), [int(length) // 2 for length in lengths]

    pooled = run(load(tmp_path), prompts, *(PoolingSpec("classify", token_type_boundary=each) for each in boundaries)).pooled

    for ids, boundary, each in zip(prompts, boundaries, pooled, strict=True):
        types = torch.tensor([[0] * boundary + [1] * (len(ids) - boundary)])
        with torch.no_grad():
            expected = torch.sigmoid(reference(torch.tensor([ids]), token_type_ids=types).logits[0]).numpy()
        np.testing.assert_allclose(each.values, expected, atol=1e-4)


def test_sixty_four_prompts_of_all_lengths_have_colberts_rows(tmp_path):
    embed = save_colbert(tmp_path, width=16, max_position_embeddings=514)
    prompts = prompts_of([1, 512, *np.random.default_rng(1).integers(1, 512, 62)])

    pooled = run(load(tmp_path), prompts, PoolingSpec("token_embed")).pooled

    for ids, each in zip(prompts, pooled, strict=True):
        np.testing.assert_allclose(each.values, embed(ids), atol=1e-4)


@pytest.mark.parametrize("kernels", ["torch", "floats", "split"])
@pytest.mark.parametrize("family", ["roberta", "modernbert", "gte"])
def test_all_programs_of_an_encoder_bring_the_same(tmp_path, monkeypatch, kernels, family):
    """Split products run where the processor has them only."""
    reference = save_encoder(tmp_path, ENCODERS[family])
    prompts = prompts_of(LENGTHS)
    if kernels == "floats":
        monkeypatch.setattr(Team, "has_split_products", False)
    model = load_with(WorkerSettings(device="cpu", cpu_kernels="torch" if kernels == "torch" else "auto"), tmp_path)

    pooled = run(model, prompts, PoolingSpec("token_embed", use_activation=False)).pooled

    tolerance = 1e-4 if kernels == "split" else 2e-5
    for ids, each in zip(prompts, pooled, strict=True):
        np.testing.assert_allclose(each.values, hidden_of(reference, ids).numpy(), atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [("auto", 1e-4), ("float32", 1e-5)])
def test_normalised_embeddings_of_wide_encoders_may_be_in_fixed_point(tmp_path, monkeypatch, dtype, tolerance):
    """They are where the processor has no tiles, but instructions for fixed point."""
    monkeypatch.setattr(Team, "has_split_products", False)
    reference = save_encoder(tmp_path, ENCODERS["bert"], hidden_size=256, num_attention_heads=8)
    save_modules(tmp_path, {"pooling_mode_mean_tokens": True}, normalize=True)
    prompts = prompts_of(LENGTHS)

    pooled = run(load(tmp_path, dtype=dtype), prompts, PoolingSpec("embed")).pooled

    for ids, each in zip(prompts, pooled, strict=True):
        expected = hidden_of(reference, ids).mean(0)
        np.testing.assert_allclose(each.values, (expected / expected.norm()).numpy(), atol=tolerance)


@pytest.mark.parametrize(("activation", "apply"), [("Tanh", torch.tanh), ("Identity", lambda x: x), ("Sigmoid", torch.sigmoid)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_dense_modules_follow_the_pooling(tmp_path, activation, apply, has_bias):
    reference = save_encoder(tmp_path, ENCODERS["bert"])
    dense = torch.nn.Linear(32, 8, bias=has_bias)
    save_modules(tmp_path, {"pooling_mode_mean_tokens": True}, normalize=True, dense=(dense, activation))
    [prompt] = prompts_of([12])
    model = load(tmp_path)

    [pooled] = run(model, [prompt], PoolingSpec("embed")).pooled

    with torch.no_grad():
        expected = apply(dense(hidden_of(reference, prompt).mean(0)))
    assert model.info.pooling.embedding_size == 8
    np.testing.assert_allclose(pooled.values, (expected / expected.norm()).numpy(), atol=1e-5)


def test_colbert_projects_and_normalises_every_token(tmp_path):
    embed = save_colbert(tmp_path, width=16)
    [prompt] = prompts_of([9])
    model = load(tmp_path)

    [pooled] = run(model, [prompt], PoolingSpec("token_embed")).pooled

    assert (model.info.pooling.tasks, model.info.pooling.embedding_size) == (("token_embed",), 16)
    np.testing.assert_allclose(pooled.values, embed(prompt), atol=1e-4)
