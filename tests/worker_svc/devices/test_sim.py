"""The simulated device: tokens from (seed, position), time from a cost model, and little time of its own."""

import subprocess
import sys
import time

import numpy as np
import pytest

from tetrad.services.errors import ModelError
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.core.result import ModelRunnerOutput
from tetrad.worker_svc.devices.sim import CostModel, SimDevice, SimRunner
from tetrad.worker_svc.devices.sim_queue import SimQueue
from tetrad.worker_svc.families.check import check_model

LAYOUT = KvLayout(num_blocks=20_000, block_size=16, max_model_len=1024, max_num_seqs=256, max_num_batched_tokens=4096)


@pytest.fixture
def make_sim_driver(make_driver):
    def make(cost=None, **fields):
        class Model:
            def make_runner(self, layout):
                return SimRunner(49152, layout, cost or CostModel(), **fields)

        return make_driver(Model(), LAYOUT)

    return make


def test_tokens_depend_on_seed_and_position_alone(make_sim_driver):
    together, alone = make_sim_driver(), make_sim_driver()
    for handle, seed in enumerate((5, 6, 5)):
        together.add(handle, [1] * 30, SamplingSpec(seed=seed))
    alone.add(9, [1] * 30, SamplingSpec(seed=5))

    outputs, other = together.generate(20, chunk=7), alone.generate(20)

    assert outputs[0] == outputs[2] == other[9] != outputs[1]


def test_recovered_request_goes_on_as_before(make_sim_driver):
    whole, recovered = make_sim_driver(), make_sim_driver()
    whole.add(0, [1] * 30, SamplingSpec(seed=5))
    expected = whole.generate(12)[0]

    request = recovered.add(4, [1] * 30, SamplingSpec(seed=5))
    request.output, request.num_tokens = expected[:5], 35

    assert recovered.generate(12)[4] == expected


def test_tokens_are_ordinary_ids(make_sim_driver):
    runner = make_sim_driver().runner

    ids = runner.token_ids(np.arange(100_000), np.arange(100_000))

    assert (ids.min(), ids.max()) == (100, 49151 - 100)
    assert len(np.unique(ids)) > 40_000


def test_partial_prefill_samples_nothing(make_sim_driver):
    driver = make_sim_driver()
    driver.add(0, [1] * 30)

    assert driver.step({0: 29}).handles.tolist() == []
    assert driver.step({0: 1}).handles.tolist() == [0]


class Clock:
    """A clock that stands still but for sleeps, which it notes."""

    def __init__(self):
        self.now = 0.0
        self.sleeps = []

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += seconds

    @property
    def queue(self):
        return SimQueue(self.sleep, lambda: self.now)


def result_of(step_id):
    nothing = np.zeros(0, np.uint32)
    return ModelRunnerOutput(step_id=step_id, handles=nothing, token_ids=nothing)


def test_cost_model_decides_how_long_a_step_takes(make_sim_driver):
    driver = make_sim_driver(CostModel(1.0, 0.1, 0.01), queue=Clock().queue)
    driver.add(0, [1] * 30)

    assert driver.step({0: 20}).compute_seconds == pytest.approx(3.0)
    assert driver.step({0: 10}).compute_seconds == pytest.approx(2.2)


def test_a_step_begins_when_the_one_before_it_ends():
    clock = Clock()
    queue = clock.queue
    first, second = queue.add(result_of(1), 2.0, ready_at=0.0), queue.add(result_of(2), 3.0, ready_at=0.5)

    assert [first.wait().step_id, second.wait().step_id] == [1, 2]

    assert clock.sleeps == [2.0, 3.0]


def test_a_late_reader_delays_no_step():
    """Who wakes up late waits as much less for the next step, which has begun meanwhile."""
    clock = Clock()
    queue = clock.queue
    first, second = queue.add(result_of(1), 2.0, ready_at=0.0), queue.add(result_of(2), 2.0, ready_at=0.0)
    first.wait()
    clock.now += 0.5

    second.wait()

    assert clock.now == 4.0


def test_a_device_that_had_nothing_to_do_begins_at_once():
    clock = Clock()
    queue = clock.queue
    queue.add(result_of(1), 2.0, ready_at=0.0).wait()
    clock.now = 10.0

    queue.add(result_of(2), 1.0, ready_at=10.0).wait()

    assert clock.now == 11.0


@pytest.fixture
def make_device_driver(make_driver, tiny_llama):
    """Return a maker of drivers of a device with these settings, which waits for no step."""

    def make(**settings):
        device = SimDevice(WorkerSettings(**settings))
        model = device.load_model(LoadRequest("tiny", tiny_llama[0]), lambda done, total: None)

        class Model:
            def make_runner(self, layout):
                runner = model.make_runner(layout)
                runner._queue = Clock().queue
                return runner

        return make_driver(Model(), LAYOUT)

    return make


@pytest.mark.parametrize(
    ("setting", "cost"),
    [("sim_seconds_per_step", 100), ("sim_seconds_per_token", 300), ("sim_seconds_per_context_token", 2000)],
)
def test_settings_say_what_a_step_costs(make_device_driver, setting, cost):
    driver = make_device_driver(**{setting: 100.0})
    driver.add(0, [1] * 23)
    driver.step({0: 20})

    assert driver.step({0: 3}).compute_seconds == cost


def test_a_setting_says_how_much_memory_there_is():
    device = SimDevice(WorkerSettings(sim_kv_cache_memory_gib=0.5))

    assert device.available_memory(None, utilization=1.0, max_num_batched_tokens=1) == 1 << 29


def test_a_prompt_with_the_token_of_the_setting_ends_the_process(make_device_driver, monkeypatch):
    codes = []
    monkeypatch.setattr("tetrad.worker_svc.devices.sim.os._exit", codes.append)
    driver = make_device_driver(sim_crash_token_id=7)
    driver.add(0, [5, 6])
    driver.step({0: 2})
    assert codes == []

    driver.add(1, [6, 7])
    driver.step({1: 2})

    assert codes == [1]


def test_logprobs_have_the_shape_that_was_asked_for(make_sim_driver):
    driver = make_sim_driver()
    driver.add(0, [1, 2, 3, 4], SamplingSpec(num_logprobs=3, num_prompt_logprobs=2))
    driver.add(1, [1])
    driver.add(2, [1], SamplingSpec(num_logprobs=-1))
    driver.add(3, [1], SamplingSpec(logprob_token_ids=(5, 6, 7)))

    first = driver.step({0: 3, 1: 1, 2: 1, 3: 1})
    second = driver.step({0: 1, 1: 1})

    wide, narrow = sorted(first.logprobs, key=lambda group: -group.rows.token_ids.shape[1])
    assert (wide.handles.tolist(), wide.rows.token_ids.shape) == ([2], (1, 1 + 49152))
    assert (narrow.handles.tolist(), narrow.rows.token_ids.shape) == ([3], (1, 4))
    assert list(first.prompt_logprobs) == []  # it is not through
    [logprobs] = second.logprobs
    assert (logprobs.handles.tolist(), logprobs.rows.token_ids.shape) == ([0], (1, 4))
    assert logprobs.rows.token_ids[0, 0] == driver.requests[0].output[0]
    [(start, ids, values)] = driver.requests[0].prompt_logprobs
    assert (start, ids[:, 0].tolist(), values.shape) == (1, [2, 3, 4], (3, 3))


def test_a_prompt_with_the_fail_token_fails_alone_after_three_tokens(make_sim_driver):
    driver = make_sim_driver(fail_token_id=7)
    driver.add(0, [5, 7])
    driver.add(1, [5, 6])
    for _ in range(3):
        assert not driver.step({0: driver.remaining(0), 1: driver.remaining(1)}).failures

    result, next_result = (driver.runner.execute(driver.plan({0: 1, 1: 1})) for _ in range(2))

    assert [handle for handle, _ in result.failures] == [0]
    assert result.handles.tolist() == [1]
    assert next_result.handles.tolist() == [1], "a plan that was under way may still name it"
    assert not next_result.failures


@pytest.mark.parametrize(("asked", "width"), [(0, 1), (3, 4), (-1, 49153)])
def test_prompt_logprobs_come_with_the_end_of_the_prompt(make_sim_driver, asked, width):
    driver = make_sim_driver()
    driver.add(0, [11, 12, 13], SamplingSpec(num_prompt_logprobs=asked))

    first, second = driver.step({0: 2}), driver.step({0: 1})

    assert not first.prompt_logprobs
    [logprobs] = second.prompt_logprobs
    assert (logprobs.start, logprobs.rows.token_ids.shape) == (1, (2, width))
    assert logprobs.rows.token_ids[:, 0].tolist() == [12, 13]


def test_256_requests_cost_well_under_a_millisecond(make_sim_driver):
    driver = make_sim_driver()
    for handle in range(256):
        driver.add(handle, [1] * 20)
    driver.step(dict.fromkeys(range(256), 20))
    plans = [driver.plan(dict.fromkeys(range(256), 1)) for _ in range(20)]
    times = []
    for plan in plans:
        started = time.perf_counter()
        driver.runner.execute(plan)
        times.append(time.perf_counter() - started)

    assert min(times) < 1e-3


@pytest.mark.parametrize("architecture", ["BertModel", "Qwen3ForSequenceClassification"])
def test_a_model_that_pools_is_refused_with_the_devices_that_run_it(architecture):
    with pytest.raises(ModelError, match=f"{architecture} pools; the sim device does not. Use --device cpu or cuda"):
        check_model({"architectures": [architecture]}, "sim")


def test_never_imports_torch():
    code = "import sys, tetrad.worker_svc.service, tetrad.worker_svc.devices.sim; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
