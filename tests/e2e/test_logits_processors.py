"""Custom logits processors through all services: from a module of the program's, or the example of docs/requests.md.

A request has the same tokens alone, beside others, in chunks, after preemptions, with drafts and after a killed worker.
"""

import inspect
import json
import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from tests.combinations.processors import Favourite
from tests.documents import Page
from tests.e2e.conftest import ONE_TOKENIZER, Server
from tests.e2e.library_calls import generate_together, value_of
from tests.e2e.tiny_model import save_tiny_model
from tests.one_process_llm import one_process_llm
from tetrad import LLM, SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import FailedPrecondition, InvalidRequest, TetradError

EXAMPLE = Page.of("docs/requests.md").section("Custom logits processors").block("class MinimumDistance", language="python")
MODULE = f'''{EXAMPLE}


{inspect.getsource(Favourite)}

class Broken(AdapterLogitsProcessor):
    """Fails for the third token of a request that asks for it."""

    def new_req_logits_processor(self, params):
        if not (params.extra_args or {{}}).get("broken"):
            return None
        return lambda output, logits: logits if len(output) < 2 else logits[:5]


class Last(Favourite):
    """Says that it belongs after the temperature."""

    def is_argmax_invariant(self):
        return True
'''
NUM_TOKENS = 48
SMALL_ENGINE = {"max_model_len": 128, "block_size": 8, "max_num_seqs": 16}
SMALL = SMALL_ENGINE | {"device": "cpu", "threads": 1}
PROMPTS = [[5 + (number * 37 + place * 13) % 250 for place in range(10 + 3 * number)] for number in range(6)]
ALL = range(len(PROMPTS))


def params_of(number: int, **fields: object) -> SamplingParams:
    asked = {"favour": 2.5} if number % 3 else {"distance": 6}
    fields = {"max_tokens": NUM_TOKENS, "ignore_eos": True, "temperature": number % 2 * 0.8, "seed": number, **fields}
    return SamplingParams(**{"extra_args": asked, **fields})


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """A directory with a model and a module of processors, in which services are started."""
    path = tmp_path_factory.mktemp("processors")
    (path / "own_processors.py").write_text(MODULE)
    (path / "model").mkdir()
    save_tiny_model(path / "model")
    return path


@pytest.fixture(scope="module")
def start(directory):
    """Return a starter of an LLM with the processors, whose module only the program's path has."""
    started = []

    def make(**options) -> LLM:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(directory)
            import own_processors

            names = [own_processors.MinimumDistance, own_processors.Favourite, "own_processors:Broken"]
            started.append(LLM(str(directory / "model"), **(SMALL | {"logits_processors": names} | options)))
        return started[-1]

    yield make
    for llm in started:
        llm.close()


@pytest.fixture(scope="module")
def llm(start) -> LLM:
    return start()


@pytest.fixture(scope="module")
def started_here(directory):
    """Return a starter of an LLM whose services have no processes of their own."""
    names = ("own_processors:MinimumDistance", "own_processors:Favourite", "own_processors:Broken")

    def make(**options) -> AbstractContextManager[LLM]:
        return one_process_llm(directory / "model", **(SMALL_ENGINE | {"logits_processors": names} | options))

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(directory)
        yield make


def tokens_of(llm: LLM, numbers=ALL) -> list[list[int]]:
    prompts = [{"prompt_token_ids": PROMPTS[number]} for number in numbers]
    outputs = llm.generate(prompts, [params_of(number) for number in numbers], use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module")
def expected(llm) -> list[list[int]]:
    return tokens_of(llm)


def test_processors_change_tokens(llm, expected):
    plain = llm.generate({"prompt_token_ids": PROMPTS[0]}, params_of(0, extra_args=None), use_tqdm=False)

    assert list(plain[0].outputs[0].token_ids) != expected[0]
    for tokens in (expected[0], expected[3]):
        assert all(len({*tokens[end : end + 7]}) == 7 for end in range(NUM_TOKENS - 6))


def test_a_request_alone_has_the_tokens_of_a_batch(llm, expected):
    assert [tokens_of(llm, [number])[0] for number in ALL] == expected


def test_outputs_of_one_request_have_their_own_functions(llm):
    [output] = llm.generate({"prompt_token_ids": PROMPTS[0]}, params_of(0, n=3, temperature=1.0), use_tqdm=False)

    outputs = [tuple(each.token_ids) for each in output.outputs]
    assert len({*outputs}) == 3
    assert all(len({*tokens[end : end + 7]}) == 7 for tokens in outputs for end in range(NUM_TOKENS - 6))


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 16},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}},
        {"pipeline_depth": 1, "enforce_eager": True},
    ],
    ids=["chunks", "drafts", "one step at a time"],
)
def test_options_change_no_token(started_here, expected, options):
    with started_here(**options) as llm:
        assert tokens_of(llm) == expected


def test_preemptions_change_no_token(started_here, llm):
    params = params_of(1, temperature=0.0)
    unhurried = generate_together(llm, PROMPTS, params)

    with started_here(num_gpu_blocks_override=24) as scarce:
        found = generate_together(scarce, PROMPTS, params)
        assert value_of(scarce, "tetrad:num_preemptions") > 0

    assert [each.outputs[0].token_ids for each in found] == [each.outputs[0].token_ids for each in unhurried]


def test_a_killed_worker_changes_no_token(llm, expected):
    admin, run = llm._running.frontend.engine_admin, llm._running.run
    run(admin.pause("keep", clear_cache=False))
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    llm.enqueue(prompts, [params_of(number) for number in ALL], use_tqdm=False)
    [pid] = llm.collective_rpc("get_pid")

    os.kill(pid, signal.SIGKILL)
    run(admin.resume())

    assert [list(each.outputs[0].token_ids) for each in llm.wait_for_completion(use_tqdm=False)] == expected


def test_a_mistake_fails_its_request_alone(llm, expected):
    wrong = params_of(0, extra_args={"distance": 0})
    broken = params_of(0, extra_args={"broken": True})

    with pytest.raises(InvalidRequest, match="MinimumDistance refuses the request: distance must be a positive whole number"):
        llm.generate({"prompt_token_ids": PROMPTS[0]}, wrong, use_tqdm=False)
    with pytest.raises(TetradError, match=r"own_processors:Broken returned \[5\] float32 on cpu in place of logits \[272\]"):
        llm.generate({"prompt_token_ids": PROMPTS[0]}, broken, use_tqdm=False)

    assert tokens_of(llm) == expected


def test_a_constraint_holds_under_a_processor(llm):
    params = params_of(1, structured_outputs=StructuredOutputsParams(regex="[a-f]{20}"), ignore_eos=False)

    [output] = llm.generate({"prompt_token_ids": PROMPTS[1]}, params, use_tqdm=False)

    text = output.outputs[0].text
    assert len(text) == 20
    assert {*text} <= {*"abcdef"}


def test_a_class_that_cannot_be_applied_ends_the_start(start):
    with pytest.raises(FailedPrecondition, match=r"own_processors:Last cannot be used: is_argmax_invariant\(\) is True"):
        start(logits_processors=["own_processors:Last"])


def test_serve_takes_names_of_modules_in_its_directory(directory, monkeypatch, tmp_path):
    monkeypatch.chdir(directory)
    names = ("own_processors:MinimumDistance", "own_processors:Favourite")
    flags = ("--device", "cpu", "--threads", "1", "--max-model-len", "128", "--served-model-name", "tiny")
    server = Server(tmp_path / "log", str(directory / "model"), *flags, *ONE_TOKENIZER, "--logits-processors", *names)
    try:
        server.wait_ready()
        body = {"model": "tiny", "prompt": PROMPTS[0], "max_tokens": 20, "temperature": 0, "ignore_eos": True}
        with httpx.Client(base_url=server.url, timeout=60) as client:
            answers = [
                client.post("/v1/completions", json=body | {"return_token_ids": True, **fields})
                for fields in ({"vllm_xargs": {"distance": 9}}, {"vllm_xargs": {"distance": "x"}}, {})
            ]
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions"}
        (tmp_path / "in.jsonl").write_text(json.dumps(line | {"body": body | {"vllm_xargs": {"distance": 9}}}) + "\n")
        command = [sys.executable, "-m", "tetrad.cli", "run-batch", "--url", server.url]
        subprocess.run([*command, "-i", "in.jsonl", "-o", "out.jsonl"], cwd=tmp_path, check=True, timeout=60)
        [of_batch] = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    finally:
        server.stop()

    [changed, refused, plain] = answers
    assert [answer.status_code for answer in answers] == [200, 400, 200]
    tokens = changed.json()["choices"][0]["token_ids"]
    assert all(len({*tokens[end : end + 10]}) == 10 for end in range(11))
    assert plain.json()["choices"][0]["token_ids"] != tokens
    assert "MinimumDistance refuses the request" in refused.json()["error"]["message"]
    assert of_batch["response"]["body"]["choices"][0]["text"] == changed.json()["choices"][0]["text"]
