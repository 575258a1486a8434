"""Tiny random models of every architecture give transformers' tokens and log-probabilities, for all splits of their steps.

On torch, and on the native kernels of the best two kinds of machines that this one can stand for; `make exhaustive-test` runs
them on those of the others.
"""

import numpy as np
import pytest

from tests.grids import grid
from tests.worker_svc.native import native_programs
from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.devices import cpu_models
from tetrad.worker_svc.devices.cpu import CpuDevice
from tetrad.worker_svc.native.library import best_target, targets

LLAMA3 = {
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 128}
PHI3 = {"model_type": "phi3", "pad_token_id": 0}
MIXED = {
    "sliding_window": 24,
    "use_sliding_window": True,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
MODELS = {
    "llama": ("LlamaForCausalLM", {}),
    "llama_tied_mha": ("LlamaForCausalLM", {"tie_word_embeddings": True, "num_key_value_heads": 6}),
    "llama_all_biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama3_rope": ("LlamaForCausalLM", LLAMA3),
    "linear_rope": ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "yarn_rope": ("LlamaForCausalLM", {"rope_scaling": YARN}),
    "yarn_rope_untruncated": ("Qwen3ForCausalLM", {"rope_scaling": YARN | {"truncate": False, "attention_factor": 0.8}}),
    "yarn_rope_of_two_scales": ("Qwen2ForCausalLM", {"rope_scaling": YARN | {"mscale": 1.2, "mscale_all_dim": 0.7}}),
    "partial_rope": ("Phi3ForCausalLM", PHI3 | {"partial_rotary_factor": 0.5}),
    "fused_projections": ("Phi3ForCausalLM", PHI3 | {"sliding_window": 24}),
    "mistral_window": ("MistralForCausalLM", {"sliding_window": 24}),
    "qwen2_mixed_windows": ("Qwen2ForCausalLM", MIXED),
    "qwen2_two_windows_to_one": ("Qwen3ForCausalLM", MIXED | {"layer_types": ["sliding_attention"] * 2 + ["full_attention"]}),
    "qwen2_bias": ("Qwen2ForCausalLM", {}),
    "qwen3_norms": ("Qwen3ForCausalLM", {}),
}
PROMPTS = [np.random.default_rng(length).integers(0, 320, length).tolist() for length in (1, 5, 16, 17, 70, 333)]
LOGPROBS = SamplingSpec(temperature=0.0, num_logprobs=0)
BEST_TWO = native_programs.RUNNABLE
RUNNABLE = {target.name: target for target in targets()[targets().index(best_target()) :]}


@pytest.fixture(scope="module", params=[*grid(RUNNABLE, lambda name: name in BEST_TWO), "torch"])
def load(request):
    """Override: loads with one thread on one kind of kernels."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param in RUNNABLE:
            patch.setattr(cpu_models, "best_target", lambda: RUNNABLE[request.param])
        device = CpuDevice(WorkerSettings(threads=1, cpu_kernels="torch" if request.param == "torch" else "native"))
    device.set_up()
    return lambda path: device.load_model(LoadRequest(str(path), path), lambda *_: None)


@pytest.fixture(scope="module")
def tiny(load, tiny_llama):
    """Override: the tiny model on those kernels."""
    return load(tiny_llama[0])


@pytest.mark.parametrize("name", MODELS)
def test_architecture_matches_transformers(name, tmp_path, load, make_driver, save_tiny_model, assert_greedy):
    architecture, changes = MODELS[name]
    reference = save_tiny_model(tmp_path, architecture, changes)
    driver = make_driver(load(tmp_path))
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt, LOGPROBS)

    outputs = driver.generate(12, chunk=48)

    for handle, prompt in enumerate(PROMPTS):
        expected = assert_greedy(reference, prompt, outputs[handle])
        found = [values[0] for _, values, _ in driver.requests[handle].logprobs]
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 7, 16, 48, 400])
def test_chunking_does_not_change_tokens(chunk, tiny, tiny_llama, make_driver, assert_greedy):
    driver = make_driver(tiny)
    driver.add(0, PROMPTS[-1])

    output = driver.generate(8, chunk=chunk)[0]

    assert_greedy(tiny_llama[1], PROMPTS[-1], output)


def test_long_chunk_with_context_spans_several_tiles(tiny, tiny_llama, make_driver, assert_greedy):
    prompt = np.random.default_rng(5).integers(0, 320, 900).tolist()
    driver = make_driver(tiny)
    driver.add(0, prompt)

    driver.step({0: 37})
    driver.step({0: 863})

    assert_greedy(tiny_llama[1], prompt, driver.requests[0].output)


def test_prefix_blocks_written_in_the_same_step_are_read(tiny, tiny_llama, make_driver, assert_greedy):
    """Request 1 names request 0's first two blocks as computed while request 0 fills them in this very step."""
    prefix = PROMPTS[4][:32]
    prompts = [[*prefix, 7, 8, 9], [*prefix, 11, 12]]
    driver = make_driver(tiny)
    driver.add(0, prompts[0], shared=[5, 9])
    driver.add(1, prompts[1], shared=[5, 9], computed=32)

    driver.step({1: 2, 0: 35})

    for handle, prompt in enumerate(prompts):
        assert_greedy(tiny_llama[1], prompt, driver.requests[handle].output)


def test_mixed_steps_of_prefills_and_decodes(tiny, tiny_llama, make_driver, assert_greedy):
    driver = make_driver(tiny)
    driver.add(0, PROMPTS[3])
    driver.add(1, PROMPTS[4])
    driver.step({0: 17})
    driver.step({0: 1, 1: 33})
    driver.add(2, PROMPTS[5])
    driver.step({2: 100, 0: 1, 1: 37})
    driver.step({0: 1, 1: 1, 2: 233})

    outputs = driver.generate(10)

    for handle, prompt in enumerate(PROMPTS[3:6]):
        assert_greedy(tiny_llama[1], prompt, outputs[handle])


def test_decodes_of_very_different_lengths_share_a_step(tiny, tiny_llama, make_driver, assert_greedy):
    driver = make_driver(tiny)
    prompts = [PROMPTS[5], PROMPTS[0], PROMPTS[5][:300], PROMPTS[1], *[PROMPTS[4]] * 8]
    for handle, prompt in enumerate(prompts):
        driver.add(handle, prompt)

    outputs = driver.generate(6)

    for handle, prompt in enumerate(prompts):
        assert_greedy(tiny_llama[1], prompt, outputs[handle])


def test_preempted_request_resumes_from_its_own_tokens(tiny, tiny_llama, make_driver, assert_greedy):
    driver = make_driver(tiny)
    driver.add(0, PROMPTS[4])
    driver.add(1, PROMPTS[3])
    driver.generate(4)
    preempted = driver.remove(0)
    driver.step({1: 1})
    resumed = driver.add(0, PROMPTS[4])
    resumed.output, resumed.num_tokens = preempted.output, len(PROMPTS[4]) + 4

    outputs = driver.generate(9, chunk=20)

    assert_greedy(tiny_llama[1], PROMPTS[4], outputs[0])
    assert_greedy(tiny_llama[1], PROMPTS[3], outputs[1])


def test_plans_made_before_results_are_read(tiny, tiny_llama, make_driver, assert_greedy):
    """Six plans are made ahead; a plan never holds a sampled token, so the worker must feed itself."""
    driver = make_driver(tiny)
    driver.add(0, PROMPTS[4])
    plans = [driver.plan({0: 70}), *[driver.plan({0: 1}) for _ in range(5)]]

    for plan in plans:
        driver.take(driver.runner.execute(plan))

    assert_greedy(tiny_llama[1], PROMPTS[4], driver.requests[0].output)


def test_a_request_with_nothing_left_to_sample_fails_alone_and_may_still_be_named(tiny, make_driver):
    """The plan behind was made before the failure was known; the failed request has no token to run in it."""
    driver = make_driver(tiny)
    forbidden = SamplingSpec(temperature=0.0, allowed_token_ids=(5,), bad_words=((5,),))
    driver.add(0, PROMPTS[1], forbidden)
    driver.add(1, PROMPTS[1])
    plans = [driver.plan({0: len(PROMPTS[1]), 1: len(PROMPTS[1])}), driver.plan({0: 1, 1: 1})]

    first, second = (driver.runner.execute(plan) for plan in plans)

    [(handle, error)] = first.failures
    assert (handle, type(error)) == (0, InvalidRequest)
    assert first.handles.tolist() == second.handles.tolist() == [1]
    assert second.failures == []
    assert driver.runner.num_requests == 1


@pytest.mark.parametrize("chunk", [30, 69, 70])
def test_prompt_logprobs_cover_the_prompt_across_chunks(tiny, tiny_llama, make_driver, chunk):
    """They come with the first output token, also where a chunk ends just before the prompt does."""
    prompt = PROMPTS[4]
    driver = make_driver(tiny)
    driver.add(0, prompt, SamplingSpec(temperature=0.0, num_prompt_logprobs=2))

    results = [driver.step({0: min(chunk, driver.remaining(0))}) for _ in range(4)]

    assert next(result for result in results if len(result.handles)).prompt_logprobs
    logprobs = tiny_llama[1](tiny_tensor(prompt)).logits[0].log_softmax(-1).detach().numpy()
    [(start, ids, found)] = driver.requests[0].prompt_logprobs
    assert (start, ids[:, 0].tolist()) == (1, prompt[1:])
    np.testing.assert_allclose(found[:, 0], logprobs[range(69), prompt[1:]], atol=1e-4)
    np.testing.assert_allclose(found[:, 1], logprobs[:69].max(-1), atol=1e-4)


def tiny_tensor(ids):
    import torch

    return torch.tensor([ids])
