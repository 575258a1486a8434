"""The whole CUDA model runner, interpreted: equal to the CPU device step for step, for all splits and queues of steps."""

import gc
import weakref

import numpy as np
import pytest
import torch

from tests.worker_svc.conftest import GREEDY, Driver, save_tiny, tiny_config
from tests.worker_svc.cuda.conftest import SMALL, TINY, PipelinedDriver, record_graphs
from tests.worker_svc.families.tiny_models import save_family
from tetrad.services.errors import FailedPrecondition
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import GrammarRows, PromptEmbeds, SamplingSpec, ScoreIds
from tetrad.worker_svc.cuda.graphs import PassGraphs
from tetrad.worker_svc.cuda.output_layer import output_layer
from tetrad.worker_svc.layers.linear import PlainLinear

PROMPTS = [np.random.default_rng(length).integers(0, 320, length).tolist() for length in (1, 5, 16, 19)]
FOUR = KvLayout(num_blocks=40, block_size=16, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=16)
TWO = KvLayout(num_blocks=20, block_size=16, max_model_len=32, max_num_seqs=2, max_num_batched_tokens=16)
LOGPROBS = SamplingSpec(temperature=0.0, num_logprobs=2)
MIXED = {"sliding_window": 12, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}
MODELS = {
    "mistral_window": ("MistralForCausalLM", {"sliding_window": 12}),
    "mixed_windows": ("Qwen3ForCausalLM", MIXED),
    "qwen2_bias": ("Qwen2ForCausalLM", {}),
    "qwen3_norms": ("Qwen3ForCausalLM", {}),
    "phi3_partial_rope": ("Phi3ForCausalLM", {"model_type": "phi3", "pad_token_id": 0, "partial_rotary_factor": 0.5}),
    "llama_tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
}


def run(
    driver: Driver, num_tokens: int, sampling: SamplingSpec = GREEDY, chunk: int = 10_000, prompts: list[list[int]] = PROMPTS
) -> dict[int, list[int]]:
    for handle, prompt in enumerate(prompts):
        driver.add(handle, prompt, sampling)
    return driver.generate(num_tokens, chunk=chunk)


@pytest.fixture(scope="module")
def expected(tiny_path, load):
    """What the CPU device generates."""
    driver = Driver(load(tiny_path).make_runner(SMALL), SMALL)
    run(driver, 4, LOGPROBS)
    return driver.requests


@pytest.fixture(scope="module")
def warm_runner(tiny_cuda):
    """A runner with graphs of one, two and four requests."""
    runner = tiny_cuda.make_runner(FOUR)
    runner.warm_up(lambda *_: None)
    return runner


@pytest.mark.parametrize("chunk", [9, 10_000])
def test_steps_equal_those_of_the_cpu_device(chunk, tiny_cuda, expected):
    driver = Driver(tiny_cuda.make_runner(SMALL), SMALL)

    outputs = run(driver, 4, LOGPROBS, chunk)

    for handle, request in expected.items():
        assert outputs[handle] == request.output
        for (ids, values, rank), wanted in zip(driver.requests[handle].logprobs, request.logprobs, strict=True):
            assert ids.tolist() == wanted[0].tolist()
            np.testing.assert_allclose(values, wanted[1], atol=1e-4)
            assert rank == wanted[2]


@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_equals_the_cpu_device(name, tmp_path, load, load_cuda):
    architecture, changes = MODELS[name]
    save_tiny(tmp_path, tiny_config(architecture, **TINY, **changes))
    drivers = [Driver(device(tmp_path).make_runner(SMALL), SMALL) for device in (load, load_cuda)]

    wanted, found = (run(driver, 3, prompts=[PROMPTS[1], [*PROMPTS[2], 7]]) for driver in drivers)

    assert found == wanted


def test_steps_that_are_queued_before_results_are_read_give_the_same(tiny_cuda, expected):
    """The device reads its own tokens: those of the step before are not known to the host when the next one is launched."""
    driver = PipelinedDriver(tiny_cuda.make_runner(SMALL), SMALL)
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt)
    for _ in range(4):
        driver.launch(driver.plan({handle: driver.remaining(handle) for handle in driver.requests}))
    driver.drain()

    assert {handle: request.output for handle, request in driver.requests.items()} == {
        handle: request.output for handle, request in expected.items()
    }


@pytest.mark.parametrize("num_requests", [1, 3, 4])
def test_graphs_give_what_launches_give(num_requests, warm_runner, expected):
    """Three requests run on the graph of four, with a row of padding."""
    driver = Driver(warm_runner, FOUR)
    for handle, prompt in enumerate(PROMPTS[:num_requests]):
        driver.add(handle, prompt)

    outputs = driver.generate(4, chunk=16)

    assert outputs == {handle: expected[handle].output[:4] for handle in outputs}
    warm_runner.forget_all()


def test_warming_up_tells_how_far_it_is_and_runs_the_steps_of_graphs_eagerly_without_them(tiny_path, load_cuda):
    progress = []
    model = load_cuda(tiny_path, enforce_eager=True)

    model.make_runner(KvLayout(8, 16, 16, 2, 4)).warm_up(lambda done, total: progress.append((done, total)))

    assert progress == [(done, 6) for done in range(1, 7)]  # a chunk, steps of one and two requests, and three of sampling


def test_seeded_sampling_equals_the_cpu_device(tiny_path, load, tiny_cuda):
    sampling = SamplingSpec(temperature=0.9, top_p=0.95, top_k=40, min_p=0.01, seed=11, frequency_penalty=0.3)
    drivers = [Driver(model.make_runner(SMALL), SMALL) for model in (load(tiny_path), tiny_cuda)]

    wanted, found = (run(driver, 4, sampling, prompts=PROMPTS[1:3]) for driver in drivers)

    assert found == wanted


def test_prompt_logprobs_equal_the_cpu_device(tiny_path, load, tiny_cuda):
    sampling = SamplingSpec(temperature=0.0, num_prompt_logprobs=2)
    drivers = [Driver(model.make_runner(SMALL), SMALL) for model in (load(tiny_path), tiny_cuda)]

    for driver in drivers:
        driver.add(0, PROMPTS[-1], sampling)
        driver.generate(2, chunk=16)

    [wanted], [found] = (driver.requests[0].prompt_logprobs for driver in drivers)
    assert found[0] == wanted[0]
    np.testing.assert_array_equal(found[1], wanted[1])
    np.testing.assert_allclose(found[2], wanted[2], atol=1e-4)


@pytest.mark.parametrize("ids", [[[4, -1, 9]], [[each, each + 1, 7] for each in range(len(PROMPTS[-1]) - 3)]], ids=len)
def test_prompt_scores_equal_the_cpu_device(tiny_path, load, tiny_cuda, ids):
    sampling = SamplingSpec(temperature=0.0, score_ids=ScoreIds(np.array(ids), 2), num_prompt_logprobs=0)
    found = []
    for model in (load(tiny_path), tiny_cuda):
        driver = Driver(model.make_runner(SMALL), SMALL)
        driver.add(0, PROMPTS[-1], sampling)
        results = [driver.step({0: min(16, driver.remaining(0))}) for _ in range(len(PROMPTS[-1]) // 16 + 1)]
        found += [scored.scores for result in results for scored in result.prompt_scores]

    [wanted, other] = found
    assert wanted.shape == (len(PROMPTS[-1]) - 3, 3)
    np.testing.assert_allclose(other, wanted, atol=1e-4)


def test_a_request_of_which_nothing_is_left_fails_alone(tiny_cuda):
    driver = Driver(tiny_cuda.make_runner(SMALL), SMALL)
    for handle in (0, 1):
        driver.add(handle, PROMPTS[1])
    grammar = GrammarRows(np.array([1]), np.zeros((1, 10), np.uint32))
    first = driver.runner.execute(driver.plan({0: 5, 1: 5}, grammar=grammar))
    second = driver.runner.execute(driver.plan({0: 1, 1: 1}))  # launched before the result is read

    results = [first.wait(), second.wait()]
    third = driver.runner.execute(driver.plan({0: 1, 1: 1})).wait()

    assert [handle for handle, _ in results[0].failures] == [1]
    assert [result.handles.tolist() for result in (*results, third)] == [[0], [0], [0]]
    assert driver.runner.num_requests == 1


def test_a_failure_that_is_read_after_all_requests_were_removed_concerns_no_later_request(tiny_cuda, expected):
    """Another engine core has begun its stream, and uses the handle for another request."""
    driver = Driver(tiny_cuda.make_runner(SMALL), SMALL)
    driver.add(1, PROMPTS[1])
    grammar = GrammarRows(np.array([1]), np.zeros((1, 10), np.uint32))
    before = driver.runner.execute(driver.plan({1: 5}, grammar=grammar))
    driver.runner.forget_all()
    later = Driver(driver.runner, SMALL)
    later.add(1, PROMPTS[1])
    first = later.runner.execute(later.plan({1: 5}))

    assert [handle for handle, _ in before.wait().failures] == [1]
    later.take(first.wait())
    for _ in range(3):
        later.step({1: 1})

    assert later.requests[1].output == expected[1].output


def test_a_preempted_request_goes_on_with_the_same_tokens(tiny_cuda, expected):
    driver = Driver(tiny_cuda.make_runner(SMALL), SMALL)
    driver.add(3, PROMPTS[3])
    driver.generate(2)
    gone = driver.remove(3)
    back = driver.add(7, gone.prompt + gone.output)

    driver.generate(2)

    assert gone.output + back.output == expected[3].output


def test_a_context_beyond_the_models_positions_is_refused(tiny_cuda):
    with pytest.raises(FailedPrecondition, match="max_model_len 2048 exceeds the model's 1024 positions"):
        tiny_cuda.make_runner(KvLayout(80, 16, 2048, 8, 512))


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_prompt_embeds_bring_the_tokens_of_their_ids(family, tmp_path, load, load_cuda):
    """Through the kernels' program and the torch decoder; a step of one given token is not a graph's."""
    reference = save_family(tmp_path, family)
    table = reference.get_input_embeddings().weight.detach().numpy()
    driver, expected = (Driver(device(tmp_path).make_runner(SMALL), SMALL) for device in (load_cuda, load))
    prompts = PROMPTS[:3]
    for handle, prompt in enumerate(prompts):
        positions = np.arange(0, len(prompt), 1 + handle % 2)
        masked = [0 if place in positions else token for place, token in enumerate(prompt)]
        driver.add(handle, masked, prompt_embeds=PromptEmbeds(positions, table[np.array(prompt)[positions]]))
    wanted = run(expected, 2, prompts=prompts)

    assert driver.generate(2, chunk=7) == wanted


def test_prompt_embeds_of_another_size_fail_alone(tiny_cuda):
    driver = Driver(tiny_cuda.make_runner(SMALL), SMALL)
    driver.add(0, [0, 5], prompt_embeds=PromptEmbeds(np.array([0]), np.zeros((1, 7), np.float32)))

    result = driver.runner.execute(driver.plan({0: 2}))

    [(_, error)] = result.failures
    assert error.message == "prompt_embeds have 7 values a row; the model's hidden_size is 48."


def test_graphs_that_do_not_fit_are_refused_with_the_numbers(tiny_cuda, monkeypatch):
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    runner = tiny_cuda.make_runner(KvLayout(8, 16, 16, 2, 4))
    monkeypatch.setattr(PassGraphs, "record", full)

    with pytest.raises(FailedPrecondition, match=r"The graphs do not fit: \d+ of the device's \d+ bytes were left"):
        runner.warm_up(lambda *_: None)


def test_steps_of_the_warm_up_that_do_not_fit_are_refused_with_the_numbers(tiny_cuda, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    runner = tiny_cuda.make_runner(KvLayout(8, 16, 16, 2, 4))
    monkeypatch.setattr(tiny_cuda.decoder, "forward", full)

    with pytest.raises(FailedPrecondition, match=r"steps of the warm-up do not fit: \d+ of .* lower gpu_memory_utilization"):
        runner.warm_up(lambda *_: None)


def test_a_runner_that_is_dropped_is_gone(tiny_cuda):
    """The next one needs its memory, and nothing collects cycles in a service that has started."""
    runner = tiny_cuda.make_runner(SMALL)
    driver = Driver(runner, SMALL)
    driver.add(0, PROMPTS[1])
    driver.generate(1)
    cache = weakref.ref(runner._kv_cache)
    gc.disable()
    try:
        del runner, driver
        assert cache() is None
    finally:
        gc.enable()


def test_in_bfloat16_graphs_and_launches_give_the_same(tiny_path, load_cuda):
    """What is drawn does not depend on how the step was launched."""
    sampling = SamplingSpec(temperature=0.9, top_p=0.9, seed=5, num_logprobs=1)
    outputs = []
    for enforce_eager in (True, False):
        runner = load_cuda(tiny_path, dtype="bfloat16", enforce_eager=enforce_eager).make_runner(TWO)
        if not enforce_eager:
            record_graphs(runner)
        driver = Driver(runner, TWO)
        driver.add(0, PROMPTS[1], sampling)
        outputs.append((driver.generate(3), [values.tolist() for _, values, _ in driver.requests[0].logprobs]))

    assert outputs[0] == outputs[1]


def test_logits_are_not_rounded_to_the_type_of_the_activations():
    weight = torch.randn(40, 64, generator=torch.Generator().manual_seed(1)).bfloat16() * 4
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(2)).bfloat16()

    logits = output_layer(PlainLinear(weight, None))(hidden)

    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, (hidden.double() @ weight.double().t()).float(), rtol=1e-6, atol=1e-4)
