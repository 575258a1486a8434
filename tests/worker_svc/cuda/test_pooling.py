"""Pooling on the CUDA device, interpreted: decoders and encoders answer as on the CPU device, alone and beside generation."""

import json

import numpy as np
import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

from tests.lora_files import save_lora
from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import PipelinedDriver, record_graphs
from tests.worker_svc.families.tiny_models import change_config
from tests.worker_svc.pooling.checkpoints import CLASSIFIERS, ENCODERS, save_colbert, save_encoder, save_modules
from tests.worker_svc.pooling.decoders import SIZES, run_in_chunks, save_decoder
from tests.worker_svc.pooling.runs import prompts_of, run
from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.lora import LoraLimits
from tetrad.worker_svc.core.pooling import PoolingSpec
from tetrad.worker_svc.cuda.torch_decoder import TorchDecoder

SMALL = KvLayout(num_blocks=2048, block_size=4, max_model_len=64, max_num_seqs=8, max_num_batched_tokens=64)
FOUR = KvLayout(num_blocks=40, block_size=16, max_model_len=32, max_num_seqs=4, max_num_batched_tokens=32)
LENGTHS = (1, 6, 9)
RAW = PoolingSpec("embed", use_activation=False)
LIMITS = LoraLimits(max_loras=2, max_lora_rank=8, max_cpu_loras=2)


def assert_equal(found, wanted, atol=1e-4):
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, atol=atol)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    """A generator's checkpoint, and transformers' model."""
    directory = tmp_path_factory.mktemp("qwen3")
    return directory, save_decoder(directory, tf.Qwen3ForCausalLM, tf.Qwen3Config(**SIZES))


@pytest.mark.parametrize(("pooling", "chunk"), [("LAST", None), ("LAST", 5), ("MEAN", 5), ("CLS", 5)])
def test_a_decoder_embeds_as_on_the_cpu_device(pooling, chunk, qwen3, load, load_cuda):
    options = {"runner": "pooling", "pooler_config_json": json.dumps({"pooling_type": pooling})}
    models, prompts = [device(qwen3[0], **options) for device in (load, load_cuda)], prompts_of(LENGTHS)

    wanted, found = (run_in_chunks(model.make_runner(SMALL), prompts, PoolingSpec("embed"), chunk) for model in models)

    assert models[0].info.pooling == models[1].info.pooling
    assert_equal(found, wanted)


def test_embeddings_of_tokens_are_joined_from_all_chunks(qwen3, load, load_cuda):
    spec, prompts = PoolingSpec("token_embed", use_activation=False), prompts_of((1, 6))
    runners = [device(qwen3[0], runner="pooling").make_runner(SMALL) for device in (load, load_cuda)]

    wanted, found = (run_in_chunks(runner, prompts, spec, 5) for runner in runners)

    assert [each.shape for each in found] == [(length, SIZES["hidden_size"]) for length in (1, 6)]
    assert_equal(found, wanted)


def save_process_reward_model(directory):
    save_decoder(directory, tf.Qwen2Model, tf.Qwen2Config(**SIZES))
    tensors = {f"model.{name}": tensor for name, tensor in load_file(directory / "model.safetensors").items()}
    head = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    tensors |= {f"score.{name}": tensor.detach() for name, tensor in head.named_parameters()}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    change_config(directory, architectures=["Qwen2ForProcessRewardModel"])
    return {"pooler_config_json": '{"step_tag_id": 99}'}


def save_reranker(directory):
    save_decoder(directory, tf.Qwen3ForCausalLM, tf.Qwen3Config(**SIZES))
    (directory / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"no": 17, "yes": 40}}, "added_tokens": []}))
    overrides = {"classifier_from_token": ["no", "yes"], "is_original_qwen3_reranker": True}
    return {"hf_overrides_json": json.dumps(overrides | {"architectures": ["Qwen3ForSequenceClassification"]})}


def save_classifier(directory):
    """Gemma 2, which the torch decoder runs: its hidden states are not normed yet."""
    config = tf.Gemma2Config(**SIZES, sliding_window=9, query_pre_attn_scalar=16, num_labels=3)
    save_decoder(directory, tf.Gemma2ForSequenceClassification, config)
    return {}


@pytest.mark.parametrize(
    ("save", "spec"),
    [
        (save_classifier, PoolingSpec("classify")),
        (save_reranker, PoolingSpec("classify")),
        (save_process_reward_model, PoolingSpec("token_classify")),
        (save_process_reward_model, PoolingSpec("token_classify", False, step_tag_id=4, returned_token_ids=(1,))),
    ],
)
def test_decoders_classify_as_on_the_cpu_device(save, spec, tmp_path, load, load_cuda):
    options, prompts = save(tmp_path), [[5, 6, 99, 7, 8, 9, 99, 4], [99, 4]]
    models = [device(tmp_path, **options) for device in (load, load_cuda)]
    num_groups = len(models[0].kv_groups(4))

    wanted, found = (run_in_chunks(model.make_runner(SMALL), prompts, spec, 3, num_groups) for model in models)

    assert isinstance(models[1].decoder, TorchDecoder) == (save is save_classifier)
    assert_equal(found, wanted)


class Pooled:
    """Notes the answers of pooling requests in the results that a driver takes."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self.answers: dict[int, np.ndarray] = {}

    def take(self, result):
        self.answers |= {each.handle: each.values for each in result.pooled}
        return super().take(result)


class PooledDriver(Pooled, Driver):
    def launch(self, plan):
        self.take(self.runner.execute(plan))

    def drain(self):
        """Do nothing: no step is on its way."""


class PipelinedPooledDriver(Pooled, PipelinedDriver):
    pass


def generate_and_embed(driver):
    """Two requests generate four tokens each, in steps with a prompt of two chunks and with one of a single token."""
    for handle, prompt in enumerate(prompts_of((9, 5))):
        driver.add(handle, prompt)
    long, short = prompts_of((7, 1))
    driver.add(2, long, pooling=RAW)
    driver.launch(driver.plan({0: 9, 1: 5, 2: 4}))
    driver.launch(driver.plan({0: 1, 1: 1, 2: 3}))
    driver.remove(2)
    driver.add(3, short, pooling=RAW)
    driver.launch(driver.plan({0: 1, 1: 1, 3: 1}))
    driver.remove(3)
    driver.launch(driver.plan({0: 1, 1: 1}))
    driver.drain()
    return [driver.requests[handle].output for handle in (0, 1)], [driver.answers[handle] for handle in (2, 3)]


def test_one_runner_generates_and_embeds_in_the_same_steps(qwen3, load, load_cuda):
    """A prompt of one token is in a step of decodes, which then runs without its graph. Steps are queued, not waited for."""
    host, device = (loader(qwen3[0], runner="generate", convert="embed").make_runner(FOUR) for loader in (load, load_cuda))
    record_graphs(device)

    wanted_tokens, wanted = generate_and_embed(PooledDriver(host, FOUR))
    found_tokens, found = generate_and_embed(PipelinedPooledDriver(device, FOUR))

    assert found_tokens == wanted_tokens
    assert [len(output) for output in found_tokens] == [4, 4]
    assert_equal(found, wanted)


def test_adapters_change_embeddings_as_on_the_cpu_device(qwen3, tmp_path, load, load_cuda):
    adapter = save_lora(tmp_path / "lora", qwen3[1], "q_proj|down_proj|embed_tokens")
    answers = []
    for device in (load, load_cuda):
        model = device(qwen3[0], runner="pooling", loras=LIMITS)
        model.loras.install(1, model.loras.read(adapter))
        driver = Driver(model.make_runner(FOUR), FOUR)
        for handle in (0, 1):
            driver.add(handle, prompts_of((9,))[0], pooling=RAW, lora_id=handle)
        answers.append([each.values for each in driver.step({0: 9, 1: 9}).pooled])

    assert_equal(answers[1], answers[0])
    assert np.abs(answers[1][0] - answers[1][1]).max() > 0.01


def test_an_answer_that_is_not_finite_fails_alone(qwen3, tmp_path, load_cuda):
    tensors = load_file(qwen3[0] / "model.safetensors")
    tensors["model.embed_tokens.weight"][7] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text((qwen3[0] / "config.json").read_text())
    driver = Driver(load_cuda(tmp_path, runner="pooling").make_runner(FOUR), FOUR)
    for handle, prompt in enumerate(([5, 6], [5, 7], [8])):
        driver.add(handle, prompt, pooling=RAW if handle < 2 else None)

    result = driver.runner.execute(driver.plan({0: 2, 1: 2, 2: 1})).wait()

    assert [each.handle for each in result.pooled] == [0]
    messages = {handle: error.message for handle, error in result.failures}
    assert messages[1] == "The model's answer has values that are not finite numbers."
    assert messages[2] == "The model pools and does not generate."


def test_a_model_that_only_pools_warms_up_and_is_measured_with_pooling_requests(qwen3, load_cuda):
    model, progress = load_cuda(qwen3[0], runner="pooling"), []

    runner = model.make_runner(KvLayout(8, 16, 16, 2, 4))
    runner.warm_up(lambda done, total: progress.append((done, total)))

    assert progress == [(done, 3) for done in range(1, 4)]  # a chunk, and steps of one and two requests: no graph, no sampling
    assert model.worst_case_bytes(3) == 0  # host memory is not counted, but the step ran


ENCODER_CASES = {
    "bert": (ENCODERS["bert"], PoolingSpec("token_embed", use_activation=False)),
    "modernbert": (ENCODERS["modernbert"], PoolingSpec("token_embed", use_activation=False)),
    "nomic-bert": (ENCODERS["nomic-bert"], PoolingSpec("embed")),
    "classes": (CLASSIFIERS["modernbert"], PoolingSpec("classify")),
    "classes of tokens": (CLASSIFIERS["bert-tokens"], PoolingSpec("token_classify")),
}


@pytest.mark.parametrize("case", ENCODER_CASES)
def test_an_encoder_answers_as_on_the_cpu_device_whatever_the_batch(case, tmp_path, load, load_cuda):
    """Windows and rotary positions of ModernBERT; lengths that are padded to others, and lengths that are not."""
    kinds, spec = ENCODER_CASES[case]
    save_encoder(tmp_path, kinds)
    models, prompts = [device(tmp_path) for device in (load, load_cuda)], prompts_of((1, 2, 7, 5, 20, 63, 7, 33))

    wanted, found = ([each.values for each in run(model, prompts, spec).pooled] for model in models)
    alone = [run(models[1], [prompt], spec).pooled[0].values for prompt in prompts]

    assert models[0].info.pooling == models[1].info.pooling
    assert_equal(found, wanted)
    assert_equal(alone, wanted)


@pytest.mark.parametrize("mode", ["pooling_mode_cls_token", "pooling_mode_mean_tokens"])
def test_an_encoder_pools_as_the_files_of_sentence_transformers_say(mode, tmp_path, load, load_cuda):
    save_encoder(tmp_path, ENCODERS["bert"])
    save_modules(tmp_path, {mode: True}, normalize=True, dense=(torch.nn.Linear(32, 8), "Tanh"))
    models, prompts = [device(tmp_path) for device in (load, load_cuda)], prompts_of(LENGTHS)

    wanted, found = ([each.values for each in run(model, prompts, PoolingSpec("embed")).pooled] for model in models)

    assert found[0].shape == (8,)
    assert_equal(found, wanted)


def test_a_pair_of_texts_and_a_colbert_are_answered(tmp_path, load, load_cuda):
    save_encoder(tmp_path / "pairs", CLASSIFIERS["bert"], num_labels=1)
    save_colbert(tmp_path / "colbert", width=16)
    prompts = prompts_of((9, 9))
    specs = [PoolingSpec("classify", False, token_type_boundary=boundary) for boundary in (4, 7)]

    for name, asked in (("pairs", specs), ("colbert", [PoolingSpec("token_embed")])):
        wanted, found = (run(device(tmp_path / name), prompts, *asked).pooled for device in (load, load_cuda))
        assert_equal([each.values for each in found], [each.values for each in wanted])


def test_a_decoder_that_sees_in_both_directions_is_an_encoder(tmp_path, load, load_cuda):
    """With windows to both sides, which begin to hide keys within these prompts."""
    sizes = SIZES | {"sliding_window": 8, "query_pre_attn_scalar": 16, "layer_types": ["sliding_attention", "full_attention"]}
    save_decoder(tmp_path, tf.Gemma3TextModel, tf.Gemma3TextConfig(**sizes, use_bidirectional_attention=True))
    change_config(tmp_path, sliding_window=8)
    models, prompts = [device(tmp_path, runner="pooling") for device in (load, load_cuda)], prompts_of((1, 9, 30))

    wanted, found = ([each.values for each in run(model, prompts, PoolingSpec("embed")).pooled] for model in models)

    assert models[1].kv_groups(16) == ()
    assert_equal(found, wanted)


def test_an_encoder_in_half_precision_sleeps_and_answers_as_before(tmp_path, load, load_cuda):
    save_encoder(tmp_path, CLASSIFIERS["modernbert"])
    model, prompts = load_cuda(tmp_path, dtype="bfloat16"), prompts_of((3, 20))
    before = [each.values for each in run(model, prompts, PoolingSpec("classify")).pooled]

    model.sleep()
    model.wake_up()

    assert model.info.dtype == "bfloat16"
    assert model.info.weights_size_bytes == 2 * model.info.num_parameters
    assert_equal([each.values for each in run(model, prompts, PoolingSpec("classify")).pooled], before, atol=0)
    assert_equal(before, [each.values for each in run(load(tmp_path), prompts, PoolingSpec("classify")).pooled], atol=0.05)
    assert model.worst_case_bytes(100) == 0  # host memory is not counted, but the step ran


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cpu_offload_gb": 1}, "cpu_offload_gb is not supported for an encoder; it takes 0"),
        ({"loras": LIMITS}, "enable_lora is not supported for encoders"),
        ({"runner": "generate"}, "runner generate is not supported for encoders"),
        ({"quantization": "int8"}, "quantization int8 is not supported for encoders"),
    ],
)
def test_an_option_that_encoders_do_not_have_is_refused_by_name(options, text, tmp_path, load_cuda):
    save_encoder(tmp_path, ENCODERS["bert"])

    with pytest.raises(ModelError, match=text):
        load_cuda(tmp_path, **options)
