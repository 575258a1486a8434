"""Compilation: tried in another process, done once per language, and never blocking the event loop."""

import asyncio
import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from functools import partial

import psutil
import pytest

from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.structured_output.compiler import GrammarCompiler
from tetrad.engine_core_svc.structured_output.constraint import Constraint, Language
from tetrad.engine_core_svc.structured_output.grammar_state import GrammarState
from tetrad.engine_core_svc.structured_output.grammars import Preparations
from tetrad.engine_core_svc.structured_output.trial import TooSlow, Trial
from tetrad.services.errors import InvalidRequest, Unavailable

COMBINATIONS = [{"anyOf": [{"properties": {f"a{i}": {"const": j}}} for j in range(4)]} for i in range(12)]
DEFINITIONS = {f"a{i}": {"properties": {"p": {"$ref": f"#/$defs/a{i + 1}"}}, "required": ["p"]} for i in range(3000)}
HOSTILE = {
    "nested repetition": ("regex", "(a{1000}){1000}"),
    "nested repetition behind a letter": ("regex", "b(a{1000}){1000}"),
    "long repetition": ("regex", "a{100000}"),
    "repetition of a repetition": ("regex", "((a+)+)+b"),
    "optional tail": ("regex", ".*" + "a?" * 300 + "a" * 300),
    "long alternation of optionals": ("regex", "a?b*" * 20_000),
    "a million choices": ("choice", json.dumps([f"w{i}" for i in range(1_000_000)])),
    "many choices": ("choice", json.dumps([f"w{i}" for i in range(50_000)])),
    "many alternatives": ("grammar", "start: " + "|".join(f'"w{i}"' for i in range(30_000))),
    "ambiguity": ("grammar", 'start: a\na: a a | "x" | ""'),
    "chain of rules": (
        "grammar",
        "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(20_000)) + '\nr20000: "x"',
    ),
    "chain of terminals": (
        "grammar",
        "start: A0\n" + "\n".join(f'A{i}: A{i + 1} "a"' for i in range(30_000)) + '\nA30000: "x"',
    ),
    "chain of definitions": ("json_schema", json.dumps({"$ref": "#/$defs/a0", "$defs": {**DEFINITIONS, "a3000": {}}})),
    "many patterns": ("json_schema", json.dumps({"properties": {f"p{i}": {"pattern": "^(a|b){1,500}$"} for i in range(800)}})),
    "large enum": ("json_schema", json.dumps({"enum": list(range(60_000))})),
    "combinations": ("json_schema", json.dumps({"allOf": COMBINATIONS})),
    "long array": ("json_schema", json.dumps({"type": "array", "minItems": 1_000_000})),
    "huge text": ("json_schema", " " * 600_000 + "{}"),
    "deep": ("json_schema", '{"not":' * 2000 + "{}" + "}" * 2000),
    "too deep for a parser": ("json_schema", "[" * 100_000),
}
GOOD = Language("choice", '["yes", "no"]')
ENGINE_CORE = """
import asyncio, json, sys
from tetrad.engine_core_svc.structured_output.compiler import GrammarCompiler
from tetrad.engine_core_svc.structured_output.constraint import Language
from tetrad.engine_core_svc.structured_output.trial import Trial
from tetrad.engine_core_svc.structured_output.vocabulary import Vocabulary

async def main():
    vocabulary = Vocabulary(**json.load(sys.stdin))

    async def source():
        return vocabulary

    compiler = GrammarCompiler(source, Trial(timeout_s=60.0))
    chain = "".join(f'A{i}: A{i + 1} "a"\\n' for i in range(1000))
    await compiler.compile(Language("grammar", "start: A0\\n" + chain + 'A1000: "x"'))
    print("compiled")
    await compiler.close()

asyncio.run(main())
"""


class Counting:
    """A trial that lets everything through, and counts."""

    def __init__(self) -> None:
        self.languages: list[Language] = []
        self.go = threading.Event()
        self.go.set()
        self.begun = threading.Event()

    def attempt(self, language, vocabulary):
        self.languages.append(language)
        self.begun.set()
        self.go.wait(20)

    def interrupt(self):
        self.go.set()

    def close(self):
        pass


class Impatient(Counting):
    """A trial to which a language is too slow if its text says so."""

    def attempt(self, language, vocabulary):
        super().attempt(language, vocabulary)
        if language.text == "slow":
            raise TooSlow("slow")


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def trial() -> Counting:
    return Counting()


@pytest.fixture
async def compiler(vocabulary, trial) -> AsyncIterator[GrammarCompiler]:
    async def source():
        return vocabulary

    compiler = GrammarCompiler(source, trial, cache_size=2)
    yield compiler
    await compiler.close()


async def test_a_language_is_compiled_once_for_all_who_want_it(compiler, trial):
    first, *others = await asyncio.gather(*(compiler.compile(GOOD) for _ in range(5)))

    assert all(other is first for other in others)
    assert await compiler.compile(Language("choice", '["yes", "no"]')) is first
    assert trial.languages == [GOOD]


async def test_options_make_another_language(compiler, trial):
    await compiler.compile(Language("json_object", ""))
    await compiler.compile(Language("json_object", "", disable_any_whitespace=True))

    assert len(trial.languages) == 2


async def test_the_cache_keeps_the_newest(compiler, trial):
    languages = [Language("regex", text) for text in "abc"]

    for language in (*languages, languages[2], languages[0]):
        await compiler.compile(language)

    assert trial.languages == [*languages, languages[0]]


async def test_a_failure_is_everyones_who_waits_and_is_not_kept(compiler, trial):
    bad = Language("regex", "[")

    for _ in range(2):
        outcomes = await asyncio.gather(compiler.compile(bad), compiler.compile(bad), return_exceptions=True)
        assert all(isinstance(outcome, InvalidRequest) for outcome in outcomes)

    assert len(trial.languages) == 2


async def test_one_who_goes_away_does_not_end_the_others_compilation(compiler, trial):
    trial.go.clear()
    leaver, stayer = (asyncio.create_task(compiler.compile(GOOD)) for _ in range(2))
    await asyncio.sleep(0)

    leaver.cancel()
    trial.go.set()

    assert (await stayer).first_mask.any()


async def test_a_slow_language_does_not_delay_the_others(vocabulary):
    async def source():
        return vocabulary

    quick, patient = Impatient(), Counting()
    patient.go.clear()
    compiler = GrammarCompiler(source, quick, patient=patient)
    try:
        slow = asyncio.create_task(compiler.compile(Language("regex", "slow")))
        await asyncio.to_thread(patient.begun.wait, 20)

        await compiler.compile(GOOD)

        assert not slow.done()
        patient.go.set()
        assert (await slow).first_mask.any()
        assert [language.text for language in patient.languages] == ["slow"]
    finally:
        await compiler.close()


async def test_a_language_that_is_too_slow_for_both_trials_is_refused(vocabulary):
    async def source():
        return vocabulary

    compiler = GrammarCompiler(source, Impatient(), patient=Impatient())
    try:
        with pytest.raises(TooSlow):
            await compiler.compile(Language("regex", "slow"))
    finally:
        await compiler.close()


async def test_what_nobody_waits_for_any_more_is_not_compiled(compiler, trial):
    """A client that sends slow languages and hangs up must not keep the others waiting for each of them."""
    trial.go.clear()
    running = asyncio.create_task(compiler.compile(Language("regex", "a")))
    await asyncio.to_thread(trial.begun.wait, 20)
    abandoned = [asyncio.create_task(compiler.compile(Language("regex", text))) for text in "bc"]
    await asyncio.sleep(0)

    for task in abandoned:
        task.cancel()
    again = asyncio.create_task(compiler.compile(Language("regex", "c")))
    await settle()
    trial.go.set()

    assert (await again).first_mask.any()
    assert (await running).first_mask.any()
    assert [language.text for language in trial.languages] == ["a", "c"]


async def test_a_request_that_ends_gives_its_grammar_up_and_hears_nothing(compiler, trial):
    trial.go.clear()
    ready, failed = [], []
    preparations = Preparations(compiler, lambda request, _: ready.append(request), lambda request, _: failed.append(request))
    requests = [Request(key, f"r{key}", [5], 1, 9, status=RequestStatus.WAITING_FOR_GRAMMAR) for key in range(3)]
    for request, text in zip(requests, "ab[", strict=True):
        preparations.start(request, Constraint(Language("regex", text)))
    await asyncio.to_thread(trial.begun.wait, 20)

    preparations.stop(requests[1])
    await settle()
    trial.go.set()
    await asyncio.gather(*(compiler.compile(Language("regex", text)) for text in "a["), return_exceptions=True)
    await settle()

    assert (ready, failed) == ([requests[0]], [requests[2]])
    assert [language.text for language in trial.languages] == ["a", "["]
    preparations.stop(requests[0])


async def test_requests_that_resume_need_no_further_threads(compiler):
    """Those of a lost engine core come at once, and threads that the event loop makes for them would stay."""
    ready = asyncio.Queue()
    preparations = Preparations(compiler, lambda request, state: ready.put_nowait(state), lambda *_: ready.put_nowait(None))
    language = Language("regex", "[a-e]{40}")
    await compiler.resume(GrammarState(Constraint(language), await compiler.compile(language)), [5, 6])
    before = psutil.Process().num_threads()

    for key in range(50):
        request = Request(key, f"r{key}", [9, *[5, 6] * 15], 1, 90, status=RequestStatus.WAITING_FOR_GRAMMAR)
        preparations.start(request, Constraint(language))
    states = [await asyncio.wait_for(ready.get(), 20) for _ in range(50)]

    assert all(state.mask.any() for state in states)
    assert psutil.Process().num_threads() <= before


async def test_without_a_tokenizer_the_error_is_the_tokenizers(trial):
    async def source():
        raise Unavailable("no tokenizer")

    compiler = GrammarCompiler(source, trial)

    with pytest.raises(Unavailable, match="no tokenizer"):
        await compiler.compile(GOOD)
    await compiler.close()


def test_what_the_trial_lets_through_does_not_overflow_the_stack_of_the_engine_core(vocabulary):
    """Threads get small stacks where the system's limit is small, and also where there is none (`ulimit -s unlimited`)."""
    limit = partial(resource.setrlimit, resource.RLIMIT_STACK, (2 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))

    ended = subprocess.run(
        [sys.executable, "-c", ENGINE_CORE],
        input=json.dumps(vocabulary.source),
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stdout.strip()) == (0, "compiled"), ended.stderr


async def test_hostile_languages_cost_neither_the_process_nor_the_loops_time(vocabulary):
    """Each is refused or compiled within the limit, the loop runs meanwhile, and the next language is compiled as ever."""

    async def source():
        return vocabulary

    compiler = GrammarCompiler(source, Trial(timeout_s=0.3), patient=Trial(timeout_s=0.6))
    loop, last, gaps = asyncio.get_running_loop(), time.monotonic(), []

    def tick():
        nonlocal last
        now = time.monotonic()
        gaps.append(now - last)
        last = now
        loop.call_later(0.01, tick)

    try:
        await compiler.compile(GOOD)
        last = time.monotonic()
        tick()
        refused = {}
        for name, (kind, text) in HOSTILE.items():
            try:
                await compiler.compile(Language(kind, text))
            except InvalidRequest as error:
                refused[name] = error.message
        assert (await compiler.compile(Language("choice", '["still", "here"]'))).first_mask.any()
    finally:
        await compiler.close()

    assert {"chain of rules", "chain of terminals", "nested repetition", "deep", "huge text"} <= set(refused)
    assert "too deeply nested" in refused["chain of rules"]
    assert all(len(message) < 600 for message in refused.values())
    assert max(gaps) < 0.7
