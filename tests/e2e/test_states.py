"""Models with states give transformers' greedy tokens when requests are cached, split, preempted or recovered."""

import json
import random
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.e2e.library_calls import value_of
from tests.e2e.test_sliding_windows import check_greedy, engine, generate
from tests.e2e.test_speculation import (
    GREEDY,
    SEEDED,
    Request,
    answers_alone,
    answers_together,
    check,
    served,
    unjudged,
)
from tests.e2e.tiny_model import save_tokenizer
from tests.engine_core_svc.scheduler.fake_drafts import KnownTexts
from tests.mtp_files import save_qwen_mtp
from tests.worker_svc.families.tiny_models import save_family
from tetrad import LLM

KINDS = [GREEDY, SEEDED, replace(SEEDED, seed=4, presence_penalty=0.6), replace(GREEDY, logprobs=3)]


def drawn(*lengths: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(5, 260) for _ in range(length)] for length in lengths]


def save(directory: Path, name: str):
    """Write a family's tiny model with a tokenizer; return transformers' own."""
    reference = save_family(directory, name)
    save_tokenizer(directory)
    return reference


def some(each: list) -> list:
    """Return one of each kind, and the last two, which may begin alike."""
    return [*each[: len(KINDS)], *each[-2:]]


def test_states_beside_keys_alone_cached_in_chunks_and_preempted(tmp_path):
    """The pool holds the longest sequence and little more, and less than half of the crowd."""
    reference = save(tmp_path, "lfm2")
    prompts, crowd = drawn(1, 16, 40, 90, 300), drawn(*range(20, 36))
    prompts.append([*prompts[-1][:200], 7])

    with engine(str(tmp_path), max_num_batched_tokens=48, num_gpu_blocks_override=142) as llm:
        alone = generate(llm, prompts, at_a_time=1)
        assert value_of(llm, "tetrad:prefix_cache_hits") == 200
        assert generate(llm, prompts, at_a_time=len(prompts)) == alone
        of_crowd = generate(llm, crowd, at_a_time=len(crowd), num_tokens=30)
        assert value_of(llm, "tetrad:num_preemptions") > 0
    check_greedy(reference, prompts + crowd, alone + of_crowd)


def test_states_alone_while_a_worker_is_killed(tmp_path):
    """A block has 256 tokens there."""
    reference = save(tmp_path, "mamba2")
    prompts = drawn(1, 16, 255, 256, 300)
    prompts.append([*prompts[-1][:260], 7])

    others = set(psutil.Process().children(recursive=True))
    with LLM(model=str(tmp_path), max_model_len=512, threads=1, max_num_seqs=16) as llm:
        children = set(psutil.Process().children(recursive=True)) - others
        [worker] = [each for each in children if "tetrad.worker_svc" in " ".join(each.cmdline())]
        alone = generate(llm, prompts, at_a_time=1)
        assert value_of(llm, "tetrad:prefix_cache_hits") == 256
        kill = threading.Timer(0.02, worker.kill)
        kill.start()
        answers = [generate(llm, prompts, at_a_time=len(prompts)) for _ in range(3)]
        kill.join()

    assert not worker.is_running()
    check_greedy(reference, prompts, alone)
    assert answers == [alone] * 3


@pytest.mark.parametrize(("family", "num_blocks"), [("lfm2", 30), ("granite_hybrid", 14)])
async def test_drafts_leave_states_as_they_were(family, num_blocks, tmp_path):
    """Greedy and drawn, with log-probabilities: alone, in a batch, from the prefix cache, and preempted."""
    save(tmp_path, family)
    prompts = drawn(*range(3, 90, 8))
    requests = [Request(prompt, KINDS[number % len(KINDS)], None) for number, prompt in enumerate(prompts)]
    async with served(tmp_path, f"plain-{family}") as llm:
        expected = await answers_together(llm, requests)
    drafts = KnownTexts(random.Random(2))
    drafts.texts = {tuple(each.prompt): answer[0] for each, answer in zip(requests, expected, strict=True)}

    for name, options in (("roomy", {}), ("tight", {"num_gpu_blocks_override": num_blocks, "max_num_batched_tokens": 48})):
        async with served(tmp_path, f"{name}-{family}", drafts=drafts, **options) as llm:
            if name == "roomy":
                check(await answers_alone(llm, some(requests)), some(expected))
            check(await answers_together(llm, requests), expected)
            stats = (await llm.engine_admin.loads_known())[0].scheduler
        assert stats.num_draft_tokens > stats.num_accepted_tokens > 0
        assert (stats.num_preemptions > 0) == (name == "tight")


@pytest.mark.parametrize("method", ["draft_model", "mtp"])
@pytest.mark.usefixtures(unjudged.__name__)
async def test_what_the_worker_drafts_leaves_states_as_they_were(method, tmp_path):
    """As above, with an ordinary draft model, and with the model's own MTP layer."""
    config = {"method": method, "num_speculative_tokens": 3}
    if method == "mtp":
        save_qwen_mtp(tmp_path, "qwen3_next")
        save_tokenizer(tmp_path)
    else:
        save(tmp_path, "lfm2")
        (tmp_path / "small").mkdir()
        save(tmp_path / "small", "llama")
        config["model"] = str(tmp_path / "small")
    prompts = drawn(*range(3, 90, 8))
    prompts.append([*prompts[-1][:70], 7])
    requests = [Request(prompt, KINDS[number % len(KINDS)], None) for number, prompt in enumerate(prompts)]
    async with served(tmp_path, f"plain-{method}") as llm:
        expected = await answers_together(llm, requests)

    num_blocks = 30 if method == "draft_model" else 24
    for name, options in (("roomy", {}), ("tight", {"num_gpu_blocks_override": num_blocks, "max_num_batched_tokens": 48})):
        async with served(tmp_path, f"{name}-{method}", speculative_config=json.dumps(config), **options) as llm:
            if name == "roomy":
                check(await answers_alone(llm, some(requests)), some(expected))
            check(await answers_together(llm, requests), expected)
            stats = (await llm.engine_admin.loads_known())[0].scheduler
        assert stats.num_draft_tokens > stats.num_accepted_tokens
        assert (stats.num_preemptions > 0) == (name == "tight")
