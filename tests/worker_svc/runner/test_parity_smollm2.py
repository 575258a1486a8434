"""The real model: SmolLM2-135M from its GGUF file against transformers in float32 on the same weights."""

import gguf
import numpy as np
import pytest
import torch

from tetrad.worker_svc.checkpoint.open import open_source
from tetrad.worker_svc.core.plan import SamplingSpec

LOGPROBS = SamplingSpec(temperature=0.0, num_logprobs=0)
PROMPTS = [np.random.default_rng(n).integers(17, 49152, n).tolist() for n in (1, 2, 9, 16, 33, 64, 120)]


@pytest.fixture(scope="module")
def source(smollm2):
    return open_source(smollm2)


@pytest.fixture(scope="module")
def reference(source, cpu):
    """transformers' model with the file's weights, dequantized and reordered by us; test_dequantization checks that part."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = {key: value for key, value in source.config.items() if key != "architectures"}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**config))
    model.to_empty(device="cpu")
    names = [name for name, _ in model.named_parameters() if name != "lm_head.weight"]
    state = {name: source.load(name)[0] for name in names}
    model.load_state_dict({**state, "lm_head.weight": state["model.embed_tokens.weight"]}, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model.eval()


@pytest.fixture(scope="module")
def model(smollm2_float32):
    return smollm2_float32


def test_dequantization(source, smollm2):
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2).tensors}
    names = ("blk.3.ffn_up.weight", "blk.3.attn_k.weight")
    stored = {name: gguf.dequantize(tensors[name].data, tensors[name].tensor_type) for name in names}

    plain = source.load("model.layers.3.mlp.up_proj.weight")[0]
    permuted = source.load("model.layers.3.self_attn.k_proj.weight")[0]

    np.testing.assert_array_equal(plain.numpy(), stored["blk.3.ffn_up.weight"])
    # llama.cpp stores row (head, i) of the first half at (head, 2 i) and of the second half at (head, 2 i + 1).
    heads = stored["blk.3.attn_k.weight"].reshape(3, 32, 2, 576)
    np.testing.assert_array_equal(permuted.numpy().reshape(3, 2, 32, 576), heads.transpose(0, 2, 1, 3))


@pytest.mark.parametrize(
    "chunk", [pytest.param(10_000, id="whole", marks=pytest.mark.exhaustive), pytest.param(48, id="chunked_at_48")]
)
def test_batch_of_many_lengths(chunk, model, reference, make_driver, assert_greedy):
    driver = make_driver(model)
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt, LOGPROBS)

    outputs = driver.generate(8, chunk=chunk)

    for handle, prompt in enumerate(PROMPTS):
        expected = assert_greedy(reference, prompt, outputs[handle])
        found = [values[0] for _, values, _ in driver.requests[handle].logprobs]
        np.testing.assert_allclose(found, expected, atol=1e-4)


@torch.inference_mode()
def test_logprobs_and_ranks_of_prompt_and_output(model, reference, make_driver):
    """Top candidates, their values and the ranks of what stands there, drawn tokens included."""
    prompt, driver = PROMPTS[4], make_driver(model)
    driver.add(0, prompt, SamplingSpec(temperature=1.5, seed=3, num_logprobs=5, num_prompt_logprobs=3))

    [output] = driver.generate(12, chunk=48).values()

    logprobs = reference(torch.tensor([prompt + output[:-1]])).logits[0].log_softmax(-1)
    [(start, ids, values)] = driver.requests[0].prompt_logprobs
    found = [(ids[i], values[i], None) for i in range(len(ids))] + driver.requests[0].logprobs
    assert (start, len(found)) == (1, len(prompt) + 11)
    for expected, (ids, values, rank) in zip(logprobs, found, strict=True):
        top = expected.topk(len(ids) - 1).values
        np.testing.assert_allclose(values, expected[ids.astype(np.int64)], atol=1e-4)
        np.testing.assert_allclose(values[1:], top, atol=1e-4)
        # Within the rounding of float32: other tokens may be as likely.
        below, above = ((expected > values[0] + margin).sum() + 1 for margin in (1e-4, -1e-4))
        assert rank is None or below <= rank <= above
    assert len({rank for _, _, rank in driver.requests[0].logprobs}) > 1


def test_shared_prefix_filled_in_the_same_step(model, reference, make_driver, assert_greedy):
    prefix = PROMPTS[5]
    driver = make_driver(model)
    driver.add(0, [*prefix, 400, 500], shared=[2, 4, 6, 8])
    driver.add(1, [*prefix, 600], shared=[2, 4, 6, 8], computed=64)
    driver.step({1: 1, 0: 66})

    outputs = driver.generate(8)

    assert_greedy(reference, [*prefix, 400, 500], outputs[0])
    assert_greedy(reference, [*prefix, 600], outputs[1])


def test_known_completion(model, make_driver):
    """Prompt: "<|im_start|>..." free text; a guard against a reference and a worker that are wrong alike."""
    driver = make_driver(model)
    capital_of_france = [504, 3575, 282, 4649, 314]  # "The capital of France is"
    driver.add(0, capital_of_france)

    assert driver.generate(1)[0] == [7042]  # " Paris"
