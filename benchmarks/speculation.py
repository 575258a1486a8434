"""Speculation: output tokens/s with and without drafts, over HTTP, for texts that repeat their prompts and for random text.

`python -m benchmarks.speculation`. One stack decodes plainly, and with `prediction`; one drafts n-grams, one drafts suffixes.
Two stacks have float32 weights: one decodes plainly, one has the quantized model as its draft model. All stacks run at the same
time and are measured alternately within a round. Answers are greedy, and equal in all stacks with the same weights. Texts are
in data/.
"""

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import median, ratios, spread
from benchmarks.http_load import load, rest
from benchmarks.options import Options, read_options
from benchmarks.peers.installed import LLAMA_LOOKUP, SMOLLM2, VLLM, home, is_installed, python_of
from benchmarks.peers.vllm_server import vllm_server
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.stack import MODEL, running
from benchmarks.streams import new_prompt

_DATA = Path(__file__).parent / "data"
PLAIN, NGRAM, SUFFIX, PREDICTION = "plain", "n-gram", "suffix", "prediction"
CONFIGS: Mapping[str, Mapping[str, Any] | None] = {
    PLAIN: None,
    NGRAM: {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    SUFFIX: {"method": "suffix"},
}
PLAIN_FLOAT32, DRAFT_MODEL = "plain, float32", "draft model, float32"
_FLOAT32_CONFIGS = {
    PLAIN_FLOAT32: None,
    DRAFT_MODEL: {"method": "draft_model", "num_speculative_tokens": 4, "model": MODEL},
}
_VLLM_NGRAM = f"{VLLM}, ngram"
_LLAMA_PLAIN, _LLAMA_SIMPLE, _LLAMA_CACHE = "llama.cpp", "llama.cpp, ngram-simple", "llama.cpp, ngram-cache"
_LLAMA_METHODS = {_LLAMA_PLAIN: "none", _LLAMA_SIMPLE: "ngram_simple", _LLAMA_CACHE: "ngram_cache"}
_PLAIN_OF = {
    NGRAM: PLAIN,
    SUFFIX: PLAIN,
    PREDICTION: PLAIN,
    DRAFT_MODEL: PLAIN_FLOAT32,
    _VLLM_NGRAM: VLLM,
    _LLAMA_SIMPLE: _LLAMA_PLAIN,
    _LLAMA_CACHE: _LLAMA_PLAIN,
}
"""System with drafts -> the same system without drafts."""
_MAX_TOKENS = 192
_BATCH, _BATCH_TOKENS = 32, 48
_RANDOM_TOKENS = 128
_TIMEOUT_S = 300.0
_MAX_MODEL_LEN = 4096


@dataclass(frozen=True)
class Task:
    """A chat with one message.

    Attributes:
        name: name in the report.
        question: text of the message.
        prediction: text that the answer probably contains.
    """

    name: str
    question: str
    prediction: str


def tasks() -> list[Task]:
    """Return the tasks."""
    story, code = (_DATA / "lighthouse.txt").read_text("utf-8"), (_DATA / "inventory.txt").read_text("utf-8")
    half = story[: story.index("\n\nThe lamp burned")]
    return [
        Task("edit", f"Copy the following text, but replace the word lighthouse with beacon everywhere:\n\n{half}", half),
        Task("summary", f"Summarize the following text, using its own sentences where you can:\n\n{story}", story),
        Task("list", f"List all facts about the lighthouse from the following text:\n\n{story}", story),
        Task("file", f"Repeat this Python file with the class Item renamed to Article:\n\n```python\n{code}```", code),
    ]


Rates = dict[str, list[float]]
"""System -> output tokens/s, one value per round."""


@dataclass
class Found:
    """Rates in output tokens/s, one value per round."""

    tasks: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Task -> system -> rates."""
    others: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Name of another load (random text, batches) -> system -> rates."""


@dataclass(frozen=True)
class Answer:
    """A streamed answer."""

    text: str
    num_tokens: int
    decode_s: float

    @property
    def rate(self) -> float:
        """Tokens/s after the first token."""
        return (self.num_tokens - 1) / self.decode_s


def ask(url: str, question: str, prediction: str = "", max_tokens: int = _MAX_TOKENS) -> Answer:
    """Return the streamed, greedy answer to a question."""
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if prediction:
        body["prediction"] = {"type": "content", "content": prediction}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    pieces, times, num_tokens = [], [], 0
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        for event in _events(response):
            for choice in event["choices"]:
                if text := choice["delta"].get("content"):
                    pieces.append(text)
                    times.append(time.perf_counter())
            num_tokens = (event.get("usage") or {}).get("completion_tokens", num_tokens)
    return Answer("".join(pieces), num_tokens, times[-1] - times[0])


def _events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def measure(urls: Mapping[str, str], peers: Mapping[str, str], options: Options) -> Found:
    """Return the rates; a round before the first is not counted."""
    found, chosen = Found(), tasks()[: 2 if options.quick else None]
    prompts = [new_prompt(64) for _ in range(_BATCH)]
    for number in range(-1, options.rounds):
        for task in chosen:
            rates = answer_rates(urls, peers, task)
            if number >= 0:
                add_rates(found.tasks.setdefault(task.name, {}), rates)
        for what, run in _loads(prompts, chosen[0]).items():
            rates = {name: run(url) for name, url in urls.items()}
            if number >= 0:
                add_rates(found.others.setdefault(what, {}), rates)
        if number >= 0:
            print(f"round {number + 1}/{options.rounds} is done", flush=True)
    return found


def answer_rates(urls: Mapping[str, str], peers: Mapping[str, str], task: Task) -> dict[str, float]:
    """Return the rate of each system; SystemExit if a Tetrad stack answers differently with drafts than without."""
    answers = {name: _ask_rested(url, task.question) for name, url in urls.items()}
    answers[PREDICTION] = _ask_rested(urls[PLAIN], task.question, task.prediction)
    for name, answer in answers.items():
        if answer.text != (expected := answers[_PLAIN_OF.get(name, name)]).text:
            raise SystemExit(f"The answers to {task.name!r} differ: {name} has {answer}, not {expected}.")
    answers |= {name: _ask_rested(url, task.question) for name, url in peers.items()}
    return {name: answer.rate for name, answer in answers.items()}


def _ask_rested(url: str, question: str, prediction: str = "") -> Answer:
    rest()
    return ask(url, question, prediction)


def add_rates(found: Rates, rates: Mapping[str, float]) -> None:
    """Append each system's rate of a round."""
    for name, rate in rates.items():
        found.setdefault(name, []).append(rate)


def _loads(prompts: list[list[int]], task: Task) -> dict[str, Callable[[str], float]]:
    """Return further measurements by name: functions of the server's URL that return tokens/s."""

    def random_text(url: str, batch: int) -> float:
        fields = {"temperature": 1.0, "seed": 1}
        tokens = _RANDOM_TOKENS if batch == 1 else _BATCH_TOKENS
        return load(
            url, MODEL, batch, num_requests=batch, max_tokens=tokens, prompts=prompts[:batch], fields=fields
        ).decode_tokens_per_s  # fmt: skip

    def edits(url: str) -> float:
        """Return the rate of a batch of edits; first lines differ, so that they do not reach the same text at the same time."""
        rest()
        start = time.perf_counter()
        with ThreadPoolExecutor(_BATCH) as threads:
            answers = list(
                threads.map(lambda n: ask(url, f"Text {n}. {task.question}", max_tokens=_BATCH_TOKENS), range(_BATCH))
            )
        return sum(answer.num_tokens for answer in answers) / (time.perf_counter() - start)

    return {
        "random text, batch 1": lambda url: random_text(url, 1),
        f"random text, batch {_BATCH}": lambda url: random_text(url, _BATCH),
        f"edits, batch {_BATCH}": edits,
    }


def _section(found: Found) -> Section:
    section = Section("Speculative decoding: SmolLM2 on the CPU, output tokens/s")
    section.text(
        "Answers of up to 192 tokens to chats about the texts in [data](data), greedy, batch 1, behind the first token; the "
        "same with and without drafts. n-gram: of 2 to 4 tokens, 8 drafts at most. prediction: the text that the chat is "
        "about. draft model: the same model with quantized weights drafts for the one in float32. vLLM: its server, float32, "
        "with the same n-grams. llama.cpp: its server (xllamacpp) with two of its ways to look up drafts, as they are by "
        "default. Each program is set against itself without drafts."
    )
    names = list(next(iter(found.tasks.values())))
    section.table(["", *names], [[task, *(spread(rates[name]) for name in names)] for task, rates in found.tasks.items()])
    section.text("Against plain decoding of the same program:")
    drafted = [name for name in names if name in _PLAIN_OF]
    section.table(["", *drafted], [[task, *(_shown(rates, name) for name in drafted)] for task, rates in found.tasks.items()])
    section.text(
        "Random text: prompts of random ids at temperature 1. Edits at batch 32: the first task, each behind another first "
        "line, 48 tokens, prompts included."
    )
    ours = list(next(iter(found.others.values())))
    drafted = [name for name in ours if name in _PLAIN_OF]
    rows = [
        [what, *(spread(rates[name]) for name in ours), *(_shown(rates, name) for name in drafted)]
        for what, rates in found.others.items()
    ]
    section.table(["", *ours, *(f"{name} / {_PLAIN_OF[name]}" for name in drafted)], rows)
    add_bars(section, _bars(found))
    return section


def _shown(rates: Mapping[str, list[float]], name: str) -> str:
    return f"{gain(rates, name):.2f}"


def gain(rates: Mapping[str, list[float]], name: str) -> float:
    """Return the rate of a system with drafts against the same system without, median of the rounds."""
    return median(ratios(rates[name], rates[_PLAIN_OF[name]]))


def _bars(found: Found) -> list[Bar]:
    bars: list[Bar] = []
    for what in ("edit", "summary"):
        if rates := found.tasks.get(what):
            bars += bars_of_task(what, rates)
    bars += [
        Bar(f"{what}, {DRAFT_MODEL}, against plain", 0.97, gain(rates, DRAFT_MODEL)) for what, rates in found.tasks.items()
    ]
    for what, rates in found.others.items():
        bars += [Bar(f"{what}, {name}, against plain", 0.97, gain(rates, name)) for name in (NGRAM, SUFFIX, DRAFT_MODEL)]
    return bars


def bars_of_task(what: str, rates: Mapping[str, list[float]]) -> list[Bar]:
    """Return the bars of a task whose answer repeats a given text."""
    bars = [Bar(f"{what}, {name}, against plain", 1.6, gain(rates, name)) for name in (NGRAM, SUFFIX)]
    if what != "summary":  # its answer differs from its prediction
        bars.append(Bar(f"{what}, prediction, against plain", 2.0, gain(rates, PREDICTION)))
    return bars


def _peers(exits: ExitStack, options: Options) -> dict[str, str]:
    """Start the servers of the installed peers; return system -> URL."""
    urls: dict[str, str] = {}
    if options.with_peers and is_installed(VLLM, SMOLLM2):
        lookup = ("--speculative-config", json.dumps(CONFIGS[NGRAM]))
        for name, flags in ((VLLM, ()), (_VLLM_NGRAM, lookup)):
            urls[name] = exits.enter_context(vllm_server(SMOLLM2.floats, *flags, max_model_len=_MAX_MODEL_LEN)).url
    if options.with_peers and is_installed(LLAMA_LOOKUP, SMOLLM2):
        urls |= {name: exits.enter_context(_lookup_server(method)) for name, method in _LLAMA_METHODS.items()}
    return urls


def open_stacks(
    exits: ExitStack, configs: Mapping[str, Mapping[str, Any] | None], *flags: str, model: str = MODEL
) -> dict[str, str]:
    """Start a stack for each config of speculation; return system -> URL."""
    urls = {}
    for name, config in configs.items():
        drafts = () if config is None else ("--speculative-config", json.dumps(config))
        stack = running("--device", "cpu", "--max-model-len", str(_MAX_MODEL_LEN), *flags, *drafts, model=model)
        urls[name] = exits.enter_context(stack).url
    return urls


@contextmanager
def _lookup_server(method: str) -> Iterator[str]:
    command = [str(python_of("xllama")), str(Path(__file__).parent / "peers" / "llama_lookup_server.py")]
    arguments = [str((home() / SMOLLM2.gguf).resolve()), method]
    with subprocess.Popen(
        [*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield next(line.strip() for line in process.stdout if line.startswith("http"))
        finally:
            process.kill()


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("speculation", __doc__)
    with ExitStack() as exits:
        urls = open_stacks(exits, CONFIGS) | open_stacks(exits, _FLOAT32_CONFIGS, "--dtype", "float32")
        found = measure(urls, _peers(exits, options), options)
    write_section("speculation", _section(found), options)


if __name__ == "__main__":
    main()
