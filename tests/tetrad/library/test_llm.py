"""LLM over a simulated device, served in this process: prompts, parameters, templates, order, metrics. tests/e2e has models."""

import asyncio

import pytest
from tqdm import tqdm

from tests.one_process_llm import services_in_process
from tetrad import LLM, AsyncLLM, BeamSearchParams, EngineArgs, LoRARequest, SamplingParams
from tetrad.services.errors import InvalidRequest, TetradError

PARAMS = SamplingParams(max_tokens=4, ignore_eos=True)
NO_IMAGE = {"prompt": "a", "multi_modal_data": {"image": "photo.png"}}
BEAMS = BeamSearchParams(beam_width=2, max_tokens=4)


@pytest.fixture(scope="module")
def llm(smollm2):
    with services_in_process(), LLM(str(smollm2), device="sim", max_model_len=512, served_model_name="sim") as llm:
        yield llm


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


def test_the_bar_counts_requests_and_tells_the_speed(llm, capsys):
    llm.generate(["a", "b"], PARAMS)

    shown = capsys.readouterr().err
    assert "Processed prompts" in shown
    assert "2/2" in shown
    assert "est. speed input: " in shown
    assert " toks/s, output: " in shown


def test_the_callers_own_bar_is_used(llm, capsys):
    bars = []

    def make(**options):
        bars.append(tqdm(**options, leave=False))
        return bars[-1]

    llm.generate(["a", "b", "c"], PARAMS, use_tqdm=make)

    assert [(bar.total, bar.n) for bar in bars] == [(3, 3)]


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
    before = value_of(llm, "tetrad:generation_tokens")

    llm.generate(["a", "b"], PARAMS, use_tqdm=False)

    assert value_of(llm, "tetrad:generation_tokens") == before + 8


def test_a_reset_makes_the_prefix_cache_forget(llm):
    prompt = [list(range(300, 364))]

    def num_cached() -> int | None:
        return llm.generate(prompt, PARAMS, use_tqdm=False)[0].num_cached_tokens

    num_cached()
    assert num_cached() == 48

    assert llm.reset_prefix_cache() is True

    assert num_cached() == 0


def value_of(llm, name):
    [metric] = [metric for metric in llm.get_metrics() if metric.name == name]
    return metric.value


def test_enqueued_requests_come_in_the_order_in_which_they_were_given(llm):
    first = llm.enqueue(["a", "b"], SamplingParams(max_tokens=6, ignore_eos=True), use_tqdm=False)
    second = llm.enqueue("c", PARAMS, use_tqdm=False)

    outputs = llm.wait_for_completion(use_tqdm=False)

    assert [output.request_id for output in outputs] == first + second
    assert [len(output.outputs[0].token_ids) for output in outputs] == [6, 6, 4]
    assert llm.wait_for_completion(use_tqdm=False) == []


def test_of_a_call_that_is_refused_nothing_is_enqueued(llm):
    with pytest.raises(InvalidRequest, match="empty"):
        llm.enqueue(["a", ""], PARAMS, use_tqdm=False)

    assert llm.wait_for_completion(use_tqdm=False) == []


def test_each_conversation_may_have_its_own_parameters(llm):
    conversations = [[{"role": "user", "content": "Hello"}]] * 2
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (2, 5)]

    outputs = llm.chat(conversations, params, use_tqdm=False)

    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 5]
    with pytest.raises(ValueError, match=r"prompts \(2\) and sampling_params \(3\)"):
        llm.chat(conversations, [PARAMS] * 3, use_tqdm=False)


def test_a_template_sees_tools_and_variables(llm):
    tool = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}
    template = "{{ messages[0].content }}|{{ tools[0].function.name }}|{{ mood }}|{{ add_generation_prompt }}"

    [output] = llm.chat(
        [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        PARAMS,
        False,  # use_tqdm, where vLLM has it
        chat_template=template,
        chat_template_content_format="string",
        add_generation_prompt=False,
        tools=[tool],
        chat_template_kwargs={"mood": "fine"},
    )

    assert output.prompt == "Hi|get_time|fine|False"


def test_a_template_renders_any_number_of_conversations(llm):
    """A tokenizer refuses more than 16 conversations with templates of their own at the same time."""
    contents = [f"number {place}" for place in range(40)]

    outputs = llm.chat(
        [[{"role": "user", "content": content}] for content in contents],
        PARAMS,
        use_tqdm=False,
        chat_template="<{{ messages[0].content }}>",
    )

    assert [output.prompt for output in outputs] == [f"<{content}>" for content in contents]


def test_the_last_message_can_be_continued(llm):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The time is"}]

    [output] = llm.chat(messages, PARAMS, use_tqdm=False, add_generation_prompt=False, continue_final_message=True)

    assert output.prompt.endswith("The time is")


@pytest.mark.parametrize(
    "fields",
    [{"stop": ["\nclass", "\ndef", "\n#", "\nif", "\nprint", "x" * 2000]}, {"bad_words": ["x" * 2000, *map(str, range(200))]}],
    ids=["stop", "bad_words"],
)
def test_limits_that_protect_other_clients_of_a_server_do_not_hold(llm, fields):
    [output] = llm.generate([[504] * 20], SamplingParams(max_tokens=2, **fields), use_tqdm=False)

    assert len(output.outputs[0].token_ids) == 2


def test_a_text_that_is_truncated_may_be_much_longer_than_the_context(llm):
    text = "word " * 500_000

    [output] = llm.generate([text], PARAMS, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": 5})

    assert len(output.prompt_token_ids) == 5
    assert text.endswith(llm.get_tokenizer().decode(output.prompt_token_ids))


def test_a_conversation_that_is_truncated_may_be_much_longer_than_the_context(llm):
    messages = [{"role": "user", "content": "word " * 500_000}]

    [output] = llm.chat(messages, PARAMS, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": 5})

    assert len(output.prompt_token_ids) == 5


def test_prompts_can_be_truncated(llm):
    [output] = llm.generate([[504] * 20], PARAMS, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": 5})

    assert output.prompt_token_ids == [504] * 5


def test_a_beam_search_returns_its_width_of_sequences_per_prompt_and_computes_a_block_per_beam_and_step_at_most(llm):
    llm.reset_prefix_cache()
    before = value_of(llm, "tetrad:prefix_cache_queries") - value_of(llm, "tetrad:prefix_cache_hits")

    outputs = llm.beam_search([[504] * 100, {"prompt_token_ids": [505] * 40}], BeamSearchParams(beam_width=3, max_tokens=20))

    assert [len(output.sequences) for output in outputs] == [3, 3]
    assert [len(output.sequences[0].tokens) for output in outputs] == [120, 60]
    computed = value_of(llm, "tetrad:prefix_cache_queries") - value_of(llm, "tetrad:prefix_cache_hits") - before
    assert 140 < computed <= 140 + 2 * 19 * 3 * 16


async def test_a_beam_search_that_is_cancelled_leaves_nothing_behind(smollm2):
    async with AsyncLLM.from_engine_args(EngineArgs(str(smollm2), device="sim", max_model_len=512)) as llm:
        frontend = await llm.start()
        searching = asyncio.create_task(llm.beam_search([504], BeamSearchParams(beam_width=2, max_tokens=400)))
        async with asyncio.timeout(10):
            while not frontend.num_engine_steps:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
        assert not searching.done()

        searching.cancel()
        await asyncio.wait({searching})

        assert searching.cancelled()
        assert frontend.num_unfinished_requests == 0


MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda llm: llm.generate(7, PARAMS), "prompts must be a prompt .* got int"),
        (lambda llm: llm.generate(b"Hello", PARAMS), "prompts must be a prompt .* got bytes"),
        (lambda llm: llm.generate({"a", "b"}, PARAMS), "prompts must be a prompt .* got set"),
        (lambda llm: llm.generate("a", {"temperature": 0}), "sampling_params must be a SamplingParams .* got dict"),
        (lambda llm: llm.generate(["a", "b"], [PARAMS, 4]), r"sampling_params\[1\] must be a SamplingParams, got int"),
        (lambda llm: llm.generate("a", PARAMS, priority="1"), "priority must be an integer or a list .* got str"),
        (lambda llm: llm.generate("a", PARAMS, prompt_token_ids="a"), "prompt_token_ids must be the ids .* got str"),
        (lambda llm: llm.chat(MESSAGES, PARAMS, False, None, "{{ x }}"), "priority must be .* got str"),
        (lambda llm: llm.wait_for_completion(dict), "RequestOutput, not <class 'dict'>"),
        (lambda llm: llm.generate("a", PARAMS, priority=["1"]), r"priority\[0\] must be an integer, got str"),
        (lambda llm: llm.generate("a", PARAMS, lora_request="x"), "lora_request must be a LoRARequest .* got str"),
        (lambda llm: llm.generate("a", PARAMS, use_tqdm="yes"), "use_tqdm must be a bool or a callable .* got str"),
        (lambda llm: llm.generate("a", PARAMS, tokenization_kwargs={"pad": 1}), "unknown keys: pad"),
        (lambda llm: llm.chat("Hello", PARAMS), "messages must be a list of messages.* got str"),
        (lambda llm: llm.chat(["Hello"], PARAMS), r"messages\[0\] must be a message .* got str"),
        (lambda llm: llm.chat([*MESSAGES, MESSAGES], PARAMS), r"messages\[0\] must be a message .* got dict"),
        (lambda llm: llm.chat([["Hello"]], PARAMS), r"messages\[0\] must be .* got a list with str"),
        (lambda llm: llm.chat(MESSAGES, PARAMS, tools=["f"]), r"tools\[0\] must be a dict, got str"),
        (lambda llm: llm.chat(MESSAGES, PARAMS, tools={"type": "function"}), "tools must be a list .* got dict"),
        (lambda llm: llm.beam_search("a", PARAMS), "params must be BeamSearchParams, got SamplingParams"),
    ],
)
def test_a_wrong_type_is_a_type_error_that_says_what_was_expected(llm, call, text):
    with pytest.raises(TypeError, match=text):
        call(llm)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda llm: llm.generate([{"text": "a"}], PARAMS), "no key 'text'"),
        (lambda llm: llm.generate([1.5], PARAMS), "got float"),
        (lambda llm: llm.generate("a", PARAMS, lora_request=LoRARequest("x", 1)), "LoRA is not enabled"),
        (lambda llm: llm.chat([[]], PARAMS), "messages cannot be empty"),
        (lambda llm: llm.chat(MESSAGES, PARAMS, tools=[{"type": "web"}]), r"tools\[0\] must be"),
        (lambda llm: llm.generate(None, PARAMS), "Either prompts or prompt_token_ids must be provided."),
        (lambda llm: llm.generate("a", PARAMS, [[1], [2]]), "lengths of prompts and prompt_token_ids must be the same"),
        (lambda llm: llm.generate("a", PARAMS, guided_options_request={"guided_colour": 1}), "unknown keys: guided_colour"),
        (lambda llm: llm.generate(NO_IMAGE, PARAMS), r"multi_modal_data\['image'\]\[0\] must be a PIL image.*got str"),
        (lambda llm: llm.embed(NO_IMAGE), r"multi_modal_data\['image'\]\[0\] must be a PIL image.*got str"),
        (lambda llm: llm.beam_search(NO_IMAGE, BEAMS), r"multi_modal_data\['image'\]\[0\] must be a PIL image.*got str"),
        (lambda llm: llm.generate("a", PARAMS, prompt_adapter_request=1), "prompt_adapter_request=1 is not supported"),
        (lambda llm: llm.collective_rpc(print), "only in workers that the program started itself"),
        (lambda llm: llm.collective_rpc("sing"), "no collective method 'sing'"),
        (lambda llm: llm.collective_rpc("get_pid", timeout=0), "timeout_s must be above 0"),
        (lambda llm: llm.apply_model(print), r"with LLM\(allow_functions=True\)"),
        (lambda llm: llm.start_profile(max_iterations=-3), r"max_iterations must be in \[0, 4294967295\], got -3"),
        (lambda llm: llm.chat(MESSAGES, PARAMS, chat_template_content_format="html"), "must be 'auto', 'string' or 'openai'"),
        (lambda llm: llm.chat(MESSAGES, PARAMS, continue_final_message=True), "Cannot set both"),
        (lambda llm: llm.beam_search(["a", ""], BEAMS), "empty"),
        (lambda llm: llm.beam_search([[504] * 512], BEAMS), "maximum context length is 512 tokens.* requested 513 tokens"),
        (lambda llm: llm.beam_search("a", BEAMS, concurrency_limit=0), "concurrency_limit must be at least 1"),
    ],
)
def test_a_wrong_value_is_refused_with_a_reason_and_the_next_call_runs(llm, call, text):
    with pytest.raises(TetradError, match=text):
        call(llm)

    assert len(llm.generate("a", PARAMS, use_tqdm=False)) == 1


def test_template_that_reads_parts_gets_them_where_a_caller_says_so(llm):
    template = "{% for m in messages %}{% for part in m.content %}<{{ part.text }}>{% endfor %}{% endfor %}"
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]

    [output] = llm.chat(messages, PARAMS, use_tqdm=False, chat_template=template, chat_template_content_format="openai")

    assert output.prompt == "<a><b>"


def test_turns_can_be_enqueued(llm):
    ids = llm.enqueue_chat([MESSAGES, MESSAGES], PARAMS, use_tqdm=False)

    assert [output.request_id for output in llm.wait_for_completion(use_tqdm=False)] == ids


def test_a_registered_method_of_every_worker_can_be_called(llm):
    [pid] = llm.collective_rpc("get_pid", timeout=5)

    assert isinstance(pid, int)
