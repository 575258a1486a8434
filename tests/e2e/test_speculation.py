"""Speculation through all four services: it changes no answer, for each kind of request, in batches and after interruptions."""

import asyncio
import functools
import json
import random
import re
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.e2e.adapted_stack import kill, restartable, steps_pass
from tests.e2e.conftest import ONE_TOKENIZER
from tests.e2e.library_calls import value_of
from tests.e2e.tiny_model import save_tiny_model
from tests.eagle3_files import save_eagle3
from tests.engine_core_svc.scheduler.fake_drafts import KnownTexts
from tests.grids import grid
from tests.lora_files import save_lora
from tetrad import LLM, LoRARequest, SamplingParams
from tetrad.engine_core_svc.scheduler.drafts import lookup
from tetrad.engine_core_svc.scheduler.drafts.rate_comparison import RateComparison
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.direct.carrier import DirectCarrier
from tetrad.stack import one_process
from tetrad.stack.one_process import OneProcessSettings, running
from tetrad.worker_svc.runner import draft_outputs

NUM_TOKENS = 24
LIMITS = {"enable_lora": True, "max_loras": 2, "block_size": 8, "max_model_len": 128, "num_gpu_blocks_override": 300}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Tom", "Kit"]}, "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}
SEEDED = SamplingParams(temperature=1.0, top_p=0.9, seed=3, max_tokens=NUM_TOKENS)
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
KINDS = [
    GREEDY,
    SEEDED,
    replace(SEEDED, seed=4, presence_penalty=0.6, frequency_penalty=0.4, repetition_penalty=1.2),
    replace(GREEDY, structured_outputs=StructuredOutputsParams(json=SCHEMA), max_tokens=40),
    replace(SEEDED, seed=5, structured_outputs=StructuredOutputsParams(regex="([a-c]{1,4}-[0-3]{2};){2,5}")),
    replace(GREEDY, logprobs=3),
    replace(SEEDED, seed=6, logprobs=2, prompt_logprobs=1),
    replace(SEEDED, seed=7, min_p=0.01, logit_bias={9: 4.0, 12: -4.0}, bad_words=["e", "tr"]),
    replace(GREEDY, min_tokens=12, stop_token_ids=list(range(100, 140))),
]
NUM_ALONE = len(KINDS)  # one request of each kind; the others of that kind are in the batch


@dataclass(frozen=True)
class Request:
    """One request; no two have the same prompt."""

    prompt: list[int]
    params: SamplingParams
    lora: LoRARequest | None


@dataclass(frozen=True)
class Case:
    """A tiny model with two adapters, 32 requests, and their answers one by one without speculation."""

    directory: Path
    requests: list[Request]
    answers: list[tuple]

    @property
    def texts(self) -> dict[tuple[int, ...], list[int]]:
        return {tuple(each.prompt): answer[0] for each, answer in zip(self.requests, self.answers, strict=True)}


def requests_of(directory: Path) -> list[Request]:
    rng = random.Random(1)
    loras = [None, *(LoRARequest(f"adapter-{number}", number, str(directory / str(number))) for number in (1, 2))]
    prompts = [[*(rng.randrange(5, 260) for _ in range(rng.randrange(6, 30))), *[7, 8, 9, number] * 2] for number in range(32)]
    return [Request(prompt, KINDS[number % len(KINDS)], loras[number % 3]) for number, prompt in enumerate(prompts)]


@asynccontextmanager
async def served(directory: Path, name: str, *, drafts=None, **fields) -> AsyncIterator[AsyncLLM]:
    settings = OneProcessSettings.of(str(directory), name, worker={"device": "cpu", "threads": 1}, engine_core=LIMITS | fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one_process, "serve_engine_core", functools.partial(one_process.serve_engine_core, drafts=drafts))
        async with running(settings, DirectCarrier()) as llm:
            yield llm


async def answer(llm: AsyncLLM, name: str, request: Request) -> tuple:
    """Return ids, text, why it ended, and the log-probabilities of output and prompt."""
    stream = await llm.add_request(name, {"prompt_token_ids": request.prompt}, request.params, lora_request=request.lora)
    pieces = [each async for each in stream]
    last, output = pieces[-1], pieces[-1].outputs[0]
    return output.token_ids, output.text, (output.finish_reason, output.stop_reason), (output.logprobs, last.prompt_logprobs)


async def answers_alone(llm: AsyncLLM, requests: list[Request]) -> list[tuple]:
    return [await answer(llm, f"alone-{number}", request) for number, request in enumerate(requests)]


async def answers_together(llm: AsyncLLM, requests: list[Request]) -> list[tuple]:
    return list(await asyncio.gather(*(answer(llm, f"beside-{number}", each) for number, each in enumerate(requests))))


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Case:
    directory = tmp_path_factory.mktemp("speculation")
    save_tiny_model(directory)
    (directory / "small").mkdir()
    save_tiny_model(directory / "small", num_hidden_layers=1)
    save_eagle3(directory / "eagle", vocab_size=272, eagle_aux_hidden_state_layer_ids=[0, 1, 1])
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    save_lora(directory / "1", reference, "q_proj|up_proj|lm_head", seed=1)
    save_lora(directory / "2", reference, "k_proj|o_proj|down_proj", rank=4, seed=2)
    requests = requests_of(directory)

    async def learn() -> Case:
        async with served(directory, "plain") as llm:
            for number in (0, 1, 2, 5):  # stop strings that occur in the middle of what these say
                text = (await answer(llm, f"unstopped-{number}", requests[number]))[1]
                requests[number] = replace(
                    requests[number], params=replace(requests[number].params, stop=[text[len(text) // 2 :][:3], "never said"])
                )
            return Case(directory, requests, await answers_alone(llm, requests))

    return asyncio.run(learn())


def check(found: list[tuple], expected: list[tuple]) -> None:
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one[:3] == other[:3], f"request {number}"
        for place, known in zip(one[3], other[3], strict=True):
            check_logprobs(place, known)


def check_logprobs(found, known) -> None:
    assert (found is None) == (known is None)
    for one, other in zip(found or (), known or (), strict=True):
        assert (one or {}).keys() == (other or {}).keys()
        for token_id, each in (other or {}).items():
            assert one[token_id].logprob == pytest.approx(each.logprob, abs=1e-4)


@pytest.fixture
def unjudged(monkeypatch) -> None:
    """Verify every proposal, without weighing the cost of steps."""
    monkeypatch.setattr(lookup, "may_pay", lambda *_: True)
    monkeypatch.setattr(RateComparison, "pays", lambda *_: True)
    monkeypatch.setattr(
        lookup, "worthwhile", lambda proposals, *_: {key: each.draft_ids for key, each in proposals.items() if each.draft_ids}
    )


def known_texts(case: Case) -> dict:
    drafts = KnownTexts(random.Random(2))
    drafts.texts = case.texts
    return {"drafts": drafts}


def looked_up(config: dict) -> Callable[[Case], dict]:
    return lambda _: {"speculative_config": json.dumps(config)}


def drafted(name: str) -> Callable[[Case], dict]:
    """A draft model: the target itself, or another one."""

    def options(case: Case) -> dict:
        model = str(case.directory / name)
        return {"speculative_config": json.dumps({"method": "draft_model", "num_speculative_tokens": 4, "model": model})}

    return options


def headed(case: Case) -> dict:
    """An EAGLE-3 head."""
    model = str(case.directory / "eagle")
    return {"speculative_config": json.dumps({"method": "eagle3", "num_speculative_tokens": 3, "model": model})}


PROPOSERS = {
    "same model": drafted("."),
    "smaller model": drafted("small"),
    "eagle3": headed,
    "partly right": known_texts,
    "n-gram": looked_up({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}),
    "suffix": looked_up({"method": "suffix"}),
}


def some(*proposers: str) -> pytest.MarkDecorator:
    """Return all proposers as parameters. `make test` runs these: for each test a draft model, a head and a look-up."""
    return pytest.mark.parametrize("proposer", grid(PROPOSERS, lambda proposer: proposer in proposers))


@some("smaller model", "eagle3", "partly right", "n-gram")
async def test_answers_alone_in_a_batch_of_32_and_from_the_prefix_cache(case, unjudged, proposer):
    """Greedy and drawn, with penalties, constraints, stop strings, log-probabilities and adapters."""
    async with served(case.directory, f"batches-{proposer}", **PROPOSERS[proposer](case)) as llm:
        check(await answers_alone(llm, case.requests[:NUM_ALONE]), case.answers[:NUM_ALONE])
        check(await answers_together(llm, case.requests), case.answers)
        stats = (await llm.engine_admin.loads_known())[0].scheduler

    assert {answer[2][0] for answer in case.answers} == {"stop", "length"}
    assert {"[" in answer[1] for answer in case.answers[3::9]} == {True}
    assert stats.prefix_cache_hits > 0
    assert stats.num_draft_tokens > stats.num_accepted_tokens > 0


@some("same model", "eagle3", "suffix")
async def test_answers_while_the_worker_and_the_engine_core_are_lost(case, unjudged, proposer):
    """Each kind of request; some of them have drafts in flight at each loss."""
    async with restartable(case.directory, f"lost-{proposer}", **LIMITS, **PROPOSERS[proposer](case)) as services:
        running = asyncio.create_task(answers_together(services.llm, case.requests))
        await steps_pass(services.llm, 4)
        await kill(services, "worker")
        await steps_pass(services.llm, 4)
        first = (await services.llm.engine_admin.loads_known())[0].scheduler
        assert not running.done()
        await kill(services, "engine_core")
        check(await running, case.answers)
        second = (await services.llm.engine_admin.loads_known())[0].scheduler

    assert first.num_accepted_tokens + second.num_accepted_tokens > 0, "each engine core counts from its own start"


def test_a_server_counts_accepted_drafts_by_their_position(start_server, monkeypatch):
    """Requests repeat what an earlier one of their tenant has said; steps take time, so that drafts are worth it."""
    monkeypatch.setenv("TETRAD_WORKER_SIM_SECONDS_PER_STEP", "0.004")
    config = {"method": "suffix", "num_speculative_tokens": 6, "suffix_decoding_max_cached_requests": 10}
    server = start_server("--device", "sim", *ONE_TOKENIZER, "--speculative-config", json.dumps(config)).wait_ready()
    body = {"prompt": [7, 8, 9, 5], "max_tokens": 120, "seed": 3, "ignore_eos": True, "return_token_ids": True}
    said = []
    for salt in ("one", "another", "one"):
        answer = httpx.post(f"{server.url}/v1/completions", json=body | {"cache_salt": salt}, timeout=20).raise_for_status()
        said.append(answer.json()["choices"][0]["token_ids"])
        accepted = server.metric("spec_decode_num_accepted_tokens_total")
        assert (accepted > 0) == (len(said) == 3), "only the same tenant's text is found"

    assert said[0] == said[1] == said[2]
    text = httpx.get(f"{server.url}/metrics").text
    found = re.findall(
        r'^tetrad:spec_decode_num_accepted_tokens_per_pos_total\{.*position="(\d+)".*\} (\S+)$', text, re.MULTILINE
    )
    counts = [float(count) for _, count in found]
    assert [int(position) for position, _ in found] == list(range(6))
    assert sum(counts) == server.metric("spec_decode_num_accepted_tokens_total")
    assert counts == sorted(counts, reverse=True)
    assert counts[0] <= server.metric("spec_decode_num_drafts_total")


@some("smaller model", "eagle3", "suffix")
async def test_answers_of_prompts_in_chunks_and_of_preempted_requests(case, unjudged, proposer, monkeypatch):
    """And of steps whose logits are too many to be kept at once."""
    monkeypatch.setattr(draft_outputs, "_MAX_LOGITS", 2000)
    fields = {"num_gpu_blocks_override": 40, "max_num_batched_tokens": 40, "max_num_seqs": 16}
    async with served(case.directory, f"few-{proposer}", **PROPOSERS[proposer](case), **fields) as llm:
        check(await answers_together(llm, case.requests), case.answers)
        stats = (await llm.engine_admin.loads_known())[0].scheduler

    assert stats.num_preemptions > 0
    assert stats.num_accepted_tokens > 0


def test_answers_while_a_worker_is_killed(case):
    """Services have processes of their own here. Speculation judges by measured times whether drafts pay, and for that it tries
    some of a draft model's. This draft model is the target itself, so its drafts are right.
    """
    params = [replace(each, max_tokens=60, ignore_eos=True, top_p=0.1) for each in KINDS[:2]]
    requests = [Request([7, 8, 9, number] * 6, params[number % 2], None) for number in range(5, 21)]
    config = {"method": "draft_model", "num_speculative_tokens": 4, "model": str(case.directory)}

    async def without_speculation() -> list[list[int]]:
        async with served(case.directory, "undisturbed") as llm:
            return [answer[0] for answer in await answers_together(llm, requests)]

    expected = asyncio.run(without_speculation())
    prompts = [{"prompt_token_ids": request.prompt} for request in requests]
    options = {"device": "cpu", "threads": 1, "max_model_len": 128, "num_gpu_blocks_override": 200}
    others = set(psutil.Process().children(recursive=True))
    with LLM(model=str(case.directory), speculative_config=config, **options) as llm:
        children = set(psutil.Process().children(recursive=True)) - others
        [worker] = [each for each in children if "tetrad.worker_svc" in each.cmdline()]
        kill = threading.Timer(0.02, worker.kill)
        kill.start()
        rounds = [llm.generate(prompts, [each.params for each in requests], use_tqdm=False) for _ in range(2)]
        kill.join()
        num_accepted = value_of(llm, "tetrad:spec_decode_num_accepted_tokens")

    assert not worker.is_running()
    assert [[output.outputs[0].token_ids for output in outputs] for outputs in rounds] == [expected] * 2
    assert num_accepted > 0
