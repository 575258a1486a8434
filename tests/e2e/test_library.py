"""The Python library: scripts written for vLLM run after changing the import.

One compute thread: tests run side by side, and a team of threads waits for the one that lost its core.
"""

import pytest

from tests.e2e.library_calls import generate_together, value_of
from tests.e2e.tiny_model import save_tiny_model
from tests.one_process_llm import one_process_llm
from tetrad import LLM, EngineArgs, LLMEngine, SamplingParams

PROMPTS = ["Hello, my name is", "The president of the United States is", "The capital of France is", "The future of AI is"]


@pytest.fixture(scope="module")
def llm(smollm2):
    with one_process_llm(smollm2, max_model_len=2048) as llm:
        yield llm


@pytest.fixture(scope="module")
def engine(smollm2):
    """With services in processes of their own."""
    engine = LLMEngine.from_engine_args(EngineArgs(model=str(smollm2), max_model_len=2048, threads=1))
    yield engine
    engine.close()


def test_the_quick_start_script(llm, capsys):
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0.8, top_p=0.95))
    for output in outputs:
        print(f"Prompt: {output.prompt!r}, Generated text: {output.outputs[0].text!r}")  # noqa: T201 - the script does

    assert [output.prompt for output in outputs] == PROMPTS
    assert all(output.outputs[0].text for output in outputs)
    assert capsys.readouterr().out.count("Generated text") == 4


def test_a_chat(llm):
    [output] = llm.chat(
        [{"role": "user", "content": "Name the capital of France."}],
        SamplingParams(temperature=0, max_tokens=40),
        use_tqdm=False,
    )

    assert "Paris" in output.outputs[0].text


def test_the_engine_loop(engine):
    engine.add_request("0", "What is LLM?", SamplingParams(temperature=0.0))
    finished = []
    while engine.has_unfinished_requests():
        finished += [output for output in engine.step() if output.finished]

    assert [output.request_id for output in finished] == ["0"]
    assert len(finished[0].outputs[0].token_ids) == 16


def test_abort_of_three_of_ten_running_requests(engine):
    for number in range(10):
        engine.add_request(str(number), PROMPTS[number % 4], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    last = {output.request_id: output for output in engine.step()}

    engine.abort_request(["1", "4", "7", "unknown"])
    while engine.has_unfinished_requests():
        last |= {output.request_id: output for output in engine.step()}

    complete = {number for number, output in last.items() if output.finished and len(output.outputs[0].token_ids) == 40}
    assert complete == {"0", "2", "3", "5", "6", "8", "9"}
    assert engine.get_num_unfinished_requests() == 0


@pytest.mark.parametrize(
    ("request_id", "prompt", "error"),
    [
        (7, "x", TypeError),
        ("dup", "x", ValueError),
        ("long", {"prompt_token_ids": [5] * 2048}, ValueError),
        ("empty", "", ValueError),
    ],
)  # fmt: skip
def test_the_engine_refuses_what_vllm_refuses(engine, request_id, prompt, error):
    engine.add_request("dup", "x", SamplingParams(max_tokens=2))
    try:
        with pytest.raises(error):
            engine.add_request(request_id, prompt, SamplingParams(max_tokens=2))
    finally:
        engine.abort_request(["dup"])
        while engine.has_unfinished_requests():
            engine.step()


def test_a_seeded_request_is_the_same_alone_in_a_batch_after_a_preemption_and_again(tmp_path):
    directory = save_tiny_model(tmp_path)
    target = {"prompt_token_ids": list(range(100, 140))}
    others = [{"prompt_token_ids": list(range(10 + 12 * i, 50 + 12 * i))} for i in range(15)]
    params = SamplingParams(temperature=1.0, seed=1234, max_tokens=40, ignore_eos=True, detokenize=False)

    def first_of(llm: LLM, prompts: list) -> list[int]:
        return list(llm.generate(prompts, params, use_tqdm=False)[0].outputs[0].token_ids)

    with one_process_llm(directory, max_model_len=512) as llm:
        alone = first_of(llm, [target])
        assert first_of(llm, [target]) == alone
        assert first_of(llm, [target, *others]) == alone
    with one_process_llm(directory, max_model_len=512, num_gpu_blocks_override=33) as small:
        # The target arrives last, so it is the one that is preempted.
        outputs = generate_together(small, [each["prompt_token_ids"] for each in (*others, target)], params)
        assert value_of(small, "tetrad:num_preemptions") > 0
        assert list(outputs[-1].outputs[0].token_ids) == alone
