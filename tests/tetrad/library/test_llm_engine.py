"""LLMEngine over a simulated device, served in this process: steps, ids, aborts, configuration. tests/e2e has real models."""

import pytest

from tests.one_process_llm import services_in_process
from tetrad import EngineArgs, LLMEngine, SamplingParams
from tetrad.usage.usage_lib import UsageContext
from tetrad.v1.metrics.loggers import StatLoggerBase

PARAMS = SamplingParams(max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(smollm2):
    with services_in_process():
        engine = LLMEngine.from_engine_args(EngineArgs(str(smollm2), device="sim", max_model_len=512, max_num_seqs=16))
        yield engine
        engine.close()


def test_steps_return_all_requests_until_none_is_left(engine):
    for number in range(5):
        engine.add_request(str(number), "Hello", PARAMS)

    finished = []
    while engine.has_unfinished_requests():
        finished += [output.request_id for output in engine.step() if output.finished]

    assert sorted(finished) == ["0", "1", "2", "3", "4"]
    assert engine.step() == []


def test_a_request_id_that_is_in_use_is_a_value_error(engine):
    engine.add_request("twice", "Hello", PARAMS)

    with pytest.raises(ValueError, match="twice"):
        engine.add_request("twice", "Hello", PARAMS)
    engine.abort_request("twice")
    steps(engine)


def test_an_id_is_free_again_after_its_abort(engine):
    engine.add_request("again", "Hello", SamplingParams(max_tokens=400, ignore_eos=True))
    engine.abort_request(["again", "never heard of"])
    assert engine.get_num_unfinished_requests() == 0

    engine.add_request("again", "Hello", PARAMS)

    assert len(steps(engine)[-1].outputs[0].token_ids) == 4


def test_an_abort_brings_one_last_output_that_says_so(engine):
    engine.add_request("aborted", "Hello", SamplingParams(max_tokens=400, ignore_eos=True))
    engine.add_request("other", "Hello", PARAMS)
    engine.abort_request("aborted")

    finished = [output for output in steps(engine) if output.finished]

    assert {output.request_id: output.outputs[0].finish_reason for output in finished} == {
        "aborted": "abort",
        "other": "length",
    }
    assert len(finished) == 2


def test_the_sum_of_the_log_probabilities_comes_with_them(engine):
    engine.add_request("sum", "Hello", SamplingParams(max_tokens=4, ignore_eos=True, logprobs=0))
    engine.add_request("none", "Hello", PARAMS)

    last = {output.request_id: output.outputs[0] for output in steps(engine)}

    chosen = [next(iter(position.values())).logprob for position in last["sum"].logprobs]
    assert last["sum"].cumulative_logprob == pytest.approx(sum(chosen))
    assert last["none"].cumulative_logprob is None


def steps(engine):
    """Return all that is left to come."""
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((7, "x"), TypeError),
        (("a", ""), ValueError),
        (("a", [1] * 512), ValueError),
    ],
)
def test_what_cannot_be_run_is_refused_at_once(engine, arguments, error):
    with pytest.raises(error):
        engine.add_request(*arguments, PARAMS)
    assert not engine.has_unfinished_requests()


def test_the_configs_say_what_runs(engine):
    assert engine.get_model_config().max_model_len == 512
    assert engine.get_scheduler_config().max_num_seqs == 16
    assert engine.get_scheduler_config().policy == "fcfs"
    assert engine.get_parallel_config().tensor_parallel_size == 1
    assert engine.get_parallel_config().data_parallel_size == 1
    assert engine.vllm_config.cache_config.block_size == 16
    assert engine.get_decoding_config().guided_decoding_backend == "guidance"
    assert engine.get_lora_config() is None


def test_the_engine_tells_its_configuration_under_vllms_names(engine):
    config = engine.vllm_config

    assert (config.model_config.max_model_len, config.scheduler_config.max_num_seqs) == (512, 16)
    assert config.scheduler_config.policy == "fcfs"
    assert config.parallel_config.tensor_parallel_size == 1
    assert config.device_config.device_type == "sim"
    assert (config.lora_config, config.speculative_config) == (None, None)
    assert engine.get_vllm_config() == config
    assert config.decoding_config is config.structured_outputs_config


def test_what_keeps_vllms_ranks_in_step_does_nothing_and_is_there(engine):
    engine.execute_dummy_batch()
    engine.add_request("virtual", [504, 3575], PARAMS)

    assert engine.has_unfinished_requests_for_virtual_engine(0)
    assert engine.has_unfinished_requests_dp(has_unfinished=False) is False

    steps(engine)
    assert not engine.has_unfinished_requests_for_virtual_engine(0)


class Recorder(StatLoggerBase):
    """A program's own logger."""

    made = None

    def __init__(self, vllm_config, engine_index=0):
        self.max_model_len, self.recorded, self.is_initialized = vllm_config.model_config.max_model_len, [], False
        type(self).made = self

    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0):
        self.recorded.append((scheduler_stats, iteration_stats))

    def log_engine_initialized(self):
        self.is_initialized = True


def shorter(config):
    config.max_position_embeddings = 512
    return config


def test_a_programs_own_stat_logger_is_told_what_was_done_by_a_model_whose_config_the_program_changed(smollm2):
    args = EngineArgs(str(smollm2), device="sim", hf_overrides=shorter)
    engine = LLMEngine.from_engine_args(args, usage_context=UsageContext.API_SERVER, stat_loggers=[Recorder])
    engine.add_request("a", [504] * 40, PARAMS)
    steps(engine)

    engine.do_log_stats()

    engine.close()
    logger = Recorder.made
    [(scheduler, iteration)] = logger.recorded
    assert (logger.max_model_len, logger.is_initialized) == (512, True)
    assert (iteration.num_prompt_tokens, iteration.num_generation_tokens) == (40, 4)
    assert scheduler.prefix_cache_stats.queries == 40
