"""LLM and LLMEngine over a simulated device: order, lengths, seeds, aborts. Real models are in tests/e2e."""

import pytest

from tetrad import LLM, EngineArgs, LLMEngine, SamplingParams
from tetrad.services.errors import InvalidRequest

PARAMS = SamplingParams(max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(smollm2):
    with LLM(str(smollm2), device="sim", max_model_len=512, served_model_name="sim") as llm:
        yield llm


@pytest.fixture(scope="module")
def engine(smollm2):
    engine = LLMEngine.from_engine_args(EngineArgs(str(smollm2), device="sim", max_model_len=512, max_num_seqs=16))
    yield engine
    engine.close()


def test_results_come_in_the_order_of_the_prompts(llm):
    prompts = [f"Prompt number {i}" for i in range(20)]

    outputs = llm.generate(prompts, PARAMS, use_tqdm=False)

    assert [output.prompt for output in outputs] == prompts
    assert all(output.finished and len(output.outputs[0].token_ids) == 4 for output in outputs)


def test_each_prompt_may_have_its_own_parameters(llm):
    lengths = [5, 1, 3]

    outputs = llm.generate(["x"] * 3, [SamplingParams(max_tokens=n, ignore_eos=True) for n in lengths], use_tqdm=False)

    assert [len(output.outputs[0].token_ids) for output in outputs] == lengths


@pytest.mark.parametrize("prompt", ["Hello", [504, 3575], {"prompt": "Hello"}, {"prompt_token_ids": [504, 3575]}])
def test_one_prompt_of_any_form_gives_one_result(llm, prompt):
    [output] = llm.generate(prompt, PARAMS, use_tqdm=False)

    assert output.prompt_token_ids


def test_a_list_of_another_length_is_an_error_that_names_both(llm):
    with pytest.raises(InvalidRequest, match=r"prompts \(2\) and sampling_params \(1\)"):
        llm.generate(["a", "b"], [PARAMS], use_tqdm=False)
    with pytest.raises(InvalidRequest, match=r"prompts \(2\) and priority \(3\)"):
        llm.generate(["a", "b"], PARAMS, use_tqdm=False, priority=[1, 2, 3])


def test_a_bad_prompt_is_an_error_and_the_next_batch_runs(llm):
    with pytest.raises(InvalidRequest, match="empty"):
        llm.generate(["a", ""], PARAMS, use_tqdm=False)

    assert len(llm.generate(["a", "b"], PARAMS, use_tqdm=False)) == 2


def test_no_prompts_give_no_results(llm):
    assert llm.generate([], PARAMS, use_tqdm=False) == []


def test_the_callers_parameters_are_not_changed(llm):
    params = SamplingParams(max_tokens=2)
    before = params.clone()

    llm.generate("x", params, use_tqdm=False)

    assert params == before


def test_the_bar_counts_requests(llm, capsys):
    llm.generate(["a", "b"], PARAMS)

    assert "2/2" in capsys.readouterr().err


def test_a_list_of_conversations_gives_one_result_each(llm):
    conversations = [[{"role": "user", "content": text}] for text in ("Hello", "Good bye")]

    outputs = llm.chat(conversations, PARAMS, use_tqdm=False)

    assert ["Hello" in outputs[0].prompt, "Good bye" in outputs[1].prompt] == [True, True]
    assert len(llm.chat(conversations[0], PARAMS, use_tqdm=False)) == 1


def test_the_tokenizer_goes_both_ways(llm):
    tokenizer = llm.get_tokenizer()

    ids = tokenizer.encode("The capital of France is")

    assert ids == [504, 3575, 282, 4649, 314]
    assert tokenizer.decode(ids) == "The capital of France is"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False).count("Hi") == 1


def test_metrics_count_what_was_generated(llm):
    before = llm.get_metrics()["generation_tokens"]

    llm.generate(["a", "b"], PARAMS, use_tqdm=False)

    assert llm.get_metrics()["generation_tokens"] == before + 8


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


def test_an_id_is_free_again_after_its_abort(engine):
    engine.add_request("again", "Hello", SamplingParams(max_tokens=400, ignore_eos=True))
    engine.abort_request(["again", "never heard of"])
    assert not engine.has_unfinished_requests()

    engine.add_request("again", "Hello", PARAMS)
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()

    assert len(outputs[-1].outputs[0].token_ids) == 4


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
