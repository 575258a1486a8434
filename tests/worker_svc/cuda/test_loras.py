"""Adapters on the CUDA device, interpreted: several and none in one batch bring the tokens of merged checkpoints."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.lora_files import merged, save_lora
from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import SMALL, PipelinedDriver, layout_of, record_graphs
from tests.worker_svc.families.tiny_models import save_family
from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.lora import LoraLimits
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.cuda.runner import CudaModelRunner
from tetrad.worker_svc.cuda.torch_decoder import TorchDecoder

LIMITS = LoraLimits(max_loras=2, max_lora_rank=16, max_cpu_loras=4)
PROMPTS = [np.random.default_rng(length).integers(3, 320, length).tolist() for length in (1, 5, 17, 21, 6, 2)]
EVERYTHING = "q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|lm_head|embed_tokens"
FOUR = KvLayout(num_blocks=40, block_size=16, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=64)
NUM_TOKENS = 3
LOGPROBS = SamplingSpec(temperature=0.0, num_logprobs=0, num_prompt_logprobs=0)


@pytest.fixture(scope="module")
def adapters(tiny_path, tmp_path_factory):
    """Directories of adapters, and models with them merged: A of rank 8 on everything, B of rank 16, C of rank 4."""
    directory = tmp_path_factory.mktemp("adapters")
    reference = AutoModelForCausalLM.from_pretrained(tiny_path, dtype=torch.float32).eval()
    paths = [
        save_lora(directory / "a", reference, EVERYTHING, rank=8, seed=1),
        save_lora(directory / "b", reference, "k_proj|up_proj|o_proj", rank=16, alpha=8, seed=2, use_rslora=True),
        save_lora(directory / "c", reference, "v_proj|down_proj", rank=4, seed=3),
    ]
    return paths, [reference, *(merged(reference, path) for path in paths)]


@pytest.fixture(scope="module")
def adapted(tiny_path, adapters, load_cuda):
    model = load_cuda(tiny_path, loras=LIMITS)
    for lora_id, path in enumerate(adapters[0], 1):
        model.loras.install(lora_id, model.loras.read(path))
    return model


@pytest.fixture(scope="module")
def recorded(adapted):
    """A runner with graphs of one, two and four requests."""
    runner = adapted.make_runner(FOUR)
    record_graphs(runner)
    return runner


def check(references, driver: Driver, outputs: dict[int, list[int]], lora_of: dict[int, int]) -> None:
    for handle, output in outputs.items():
        request = driver.requests[handle]
        with torch.inference_mode():
            logits = references[lora_of[handle]](torch.tensor([request.prompt + output[:-1]])).logits[0]
        logprobs, size = logits.log_softmax(-1), len(request.prompt)
        assert output == logits[size - 1 :].argmax(-1).tolist()
        if request.sampling.num_prompt_logprobs is not None and size > 1:
            [(_, _, found)] = request.prompt_logprobs
            np.testing.assert_allclose(found[:, 0], logprobs[range(size - 1), request.prompt[1:]], atol=1e-4)


def test_mixed_batch_equals_merged_checkpoints(adapted, adapters):
    driver = Driver(adapted.make_runner(SMALL), SMALL)
    lora_of = {handle: handle % 3 for handle in range(len(PROMPTS))}
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt, LOGPROBS, lora_id=lora_of[handle])

    outputs = driver.generate(NUM_TOKENS, chunk=18)

    check(adapters[1], driver, outputs, lora_of)


@pytest.mark.parametrize("loras", [(1, 0, 2), (0, 3, 3, 3)])
def test_graphs_serve_any_mixture_of_adapters(loras, recorded, adapters):
    """Three requests run on the graph of four, with a row of padding."""
    driver = Driver(recorded, FOUR)
    lora_of = dict(enumerate(loras))
    for handle, lora_id in lora_of.items():
        driver.add(handle, PROMPTS[handle + 1 if handle < 3 else 4], lora_id=lora_id)

    outputs = driver.generate(NUM_TOKENS, chunk=30)

    check(adapters[1], driver, outputs, lora_of)
    recorded.forget_all()


def prompts_computed(runner: CudaModelRunner) -> Driver:
    """Return a driver of three requests with two adapters and none, which differ in their last token."""
    driver = Driver(runner, FOUR)
    for handle, lora_id in enumerate((1, 2, 0)):
        driver.add(handle, PROMPTS[1] + [handle], lora_id=lora_id)
    driver.step({handle: driver.remaining(handle) for handle in driver.requests})
    return driver


@pytest.fixture(scope="module")
def without_drafts(adapted):
    """What these requests generate."""
    return prompts_computed(adapted.make_runner(FOUR)).generate(4)


@pytest.mark.parametrize("uses_graphs", [True, False])
def test_drafts_of_requests_with_adapters_are_verified_by_their_adapters(uses_graphs, adapted, recorded, without_drafts):
    expected = without_drafts
    runner = recorded if uses_graphs else adapted.make_runner(FOUR)
    driver = prompts_computed(runner)

    driver.verify({0: expected[0][1:3], 1: [expected[1][1], 0], 2: []})

    outputs = [request.output for request in driver.requests.values()]
    assert outputs == [expected[0][:4], expected[1][:3], expected[2][:2]]
    assert len({tuple(output) for output in expected.values()}) == 3
    runner.forget_all()


def test_an_adapter_without_a_slot_takes_that_of_the_least_recently_used_one(adapted, adapters):
    """Three adapters take turns in two slots, each step queued before the results of the one before are read."""
    driver = PipelinedDriver(adapted.make_runner(SMALL), SMALL)
    lora_of = {0: 1, 1: 2, 2: 3}
    for handle, lora_id in lora_of.items():
        driver.add(handle, PROMPTS[handle + 1], lora_id=lora_id)
    for pair in ((0, 1), (1, 2), (2, 0), (0, 1)):
        driver.launch(driver.plan({handle: driver.remaining(handle) for handle in pair}))
    driver.drain()

    check(adapters[1], driver, {handle: request.output for handle, request in driver.requests.items()}, lora_of)


def test_a_plan_with_more_adapters_than_slots_is_refused(adapted):
    driver = Driver(adapted.make_runner(SMALL), SMALL)
    for handle in range(3):
        driver.add(handle, [5, 6], lora_id=handle + 1)

    with pytest.raises(InvalidRequest, match="rows have 3 adapters; max_loras is 2"):
        driver.runner.execute(driver.plan({0: 2, 1: 2, 2: 2}))


def test_request_without_its_adapter_fails_alone(adapted):
    driver = Driver(adapted.make_runner(SMALL), SMALL)
    driver.add(0, PROMPTS[1], lora_id=9)
    driver.add(1, PROMPTS[1], lora_id=1)

    result = driver.runner.execute(driver.plan({0: 5, 1: 5})).wait()

    [(handle, error)] = result.failures
    assert (handle, error.reason) == (0, "LORA_NOT_LOADED")
    assert result.handles.tolist() == [1]


def test_seeded_sampling_equals_the_cpu_device(tiny_path, load, adapted, adapters):
    sampling = SamplingSpec(temperature=0.9, top_p=0.95, seed=11)
    host = load(tiny_path, loras=LIMITS)
    for lora_id, path in enumerate(adapters[0], 1):
        host.loras.install(lora_id, host.loras.read(path))
    drivers = [Driver(model.make_runner(SMALL), SMALL) for model in (host, adapted)]
    for driver in drivers:
        for handle in range(3):
            driver.add(handle, PROMPTS[handle], sampling, lora_id=handle)

    wanted, found = (driver.generate(NUM_TOKENS) for driver in drivers)

    assert found == wanted


def test_an_adapter_that_was_replaced_is_used_at_once(tiny_path, adapters, load_cuda):
    paths, references = adapters
    model = load_cuda(tiny_path, loras=LIMITS)
    for lora_id in (1, 2):
        model.loras.install(1, model.loras.read(paths[lora_id - 1]))
        driver = Driver(model.make_runner(SMALL), SMALL)
        driver.add(0, PROMPTS[2], lora_id=1)

        outputs = driver.generate(1)

        check(references, driver, outputs, {0: lora_id})
    model.loras.remove(1)
    assert not model.loras.has(1)


def test_adapters_sleep_and_wake_with_the_weights(tiny_path, adapters, load_cuda):
    paths, references = adapters
    model = load_cuda(tiny_path, loras=LIMITS, dtype="float16")
    model.loras.install(1, model.loras.read(paths[0]))
    tokens = []
    for _ in range(2):
        driver = Driver(model.make_runner(SMALL), SMALL)
        driver.add(0, PROMPTS[2], lora_id=1)
        tokens.append(driver.generate(2))
        model.sleep()
        model.wake_up()

    assert tokens[0] == tokens[1]
    check(references, driver, tokens[0], {0: 1})


@pytest.mark.parametrize(
    ("family", "modules"),
    [
        ("gemma2", "q_proj|o_proj|up_proj|embed_tokens"),
        ("qwen3_moe", "k_proj|v_proj|lm_head"),
        ("phi3", "qkv_proj|gate_up_proj"),
        ("falcon_h1", "q_proj|in_proj|out_proj"),
        ("mamba with biases", "in_proj|x_proj|dt_proj|out_proj"),
    ],
)
def test_fused_modules_and_the_torch_decoder(family, modules, tmp_path, load_cuda):
    reference = save_family(tmp_path / "model", family)
    adapter = save_lora(tmp_path / "adapter", reference, modules, rank=4, seed=5)
    model = load_cuda(tmp_path / "model", loras=LIMITS)
    model.loras.install(5, model.loras.read(adapter))
    layout = layout_of(model)
    driver = Driver(model.make_runner(layout), layout)
    lora_of = {0: 0, 1: 5}
    for handle, lora_id in lora_of.items():
        driver.add(handle, PROMPTS[2], lora_id=lora_id)

    outputs = driver.generate(2)

    assert isinstance(model.decoder, TorchDecoder) == (family != "phi3")
    check({0: reference, 5: merged(reference, adapter)}, driver, outputs, lora_of)


def test_quantized_weights_keep_their_own_error_only(tiny_path, adapters, load_cuda):
    paths, references = adapters
    errors = []
    for lora_id in (0, 1):
        model = load_cuda(tiny_path, loras=LIMITS, quantization="int8")
        model.loras.install(1, model.loras.read(paths[0]))
        driver = Driver(model.make_runner(SMALL), SMALL)
        driver.add(0, PROMPTS[3], LOGPROBS, lora_id=lora_id)
        driver.generate(1)
        with torch.inference_mode():
            logprobs = references[lora_id](torch.tensor([PROMPTS[3]])).logits[0].log_softmax(-1)[range(20), PROMPTS[3][1:]]
        errors.append(float(np.abs(driver.requests[0].prompt_logprobs[0][2][:, 0] - logprobs.numpy()).mean()))

    assert errors[1] < 2 * errors[0]


def test_warming_up_runs_and_records_steps_with_adapters(adapted):
    progress = []

    adapted.make_runner(KvLayout(8, 16, 16, 1, 4)).warm_up(lambda done, total: progress.append((done, total)))

    # A chunk and a request, with adapters and without; three steps of sampling; of each kind graphs of 1, 2, 4 and 8 rows, and
    # of 4 tokens.
    assert progress == [(done, 17) for done in range(1, 18)]


def test_the_largest_step_is_run_with_adapters(adapted, monkeypatch):
    adapted_steps = []
    select = type(adapted.loras).select

    def noted(loras, lora_ids):
        select(loras, lora_ids)
        adapted_steps.append(loras._rows is not None)

    monkeypatch.setattr(type(adapted.loras), "select", noted)

    adapted.worst_case_bytes(3)

    assert adapted_steps == [True, True]  # of the tokens, and of the rows that sample
