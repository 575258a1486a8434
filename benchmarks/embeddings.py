"""Embedding texts with all-MiniLM-L6-v2: Tetrad over HTTP, sentence-transformers in its own process, and vLLM over HTTP.

`python -m benchmarks.embeddings`. 10,000 texts of about 20 tokens, and 1,000 of 256. Servers get requests of 256 texts, eight
at a time, and answer in base64, the default of OpenAI's client. All systems run at the same time and are measured alternately
within a round. Their embeddings of the first text must agree, value by value. CPU time is measured as well, because it depends
less on other load of the machine.
"""

import asyncio
import base64
import json
import random
import tempfile
import time
from array import array
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import httpx

from benchmarks.figures import median, ratios, spread
from benchmarks.options import Options, read_options
from benchmarks.peers.installed import MINILM, SENTENCE_TRANSFORMERS, VLLM, home, is_installed, python_of
from benchmarks.peers.lines import DrivenEngine
from benchmarks.peers.vllm_server import vllm_server
from benchmarks.processes import ProcessTree
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.stack import MODEL, Stack, running

_OURS = "Tetrad"
_PER_REQUEST, _AT_ONCE = 256, 8
_BAR = 1.5
_LARGEST_DIFFERENCE = 1e-4
_WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
    "family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system",
    "program", "question", "work", "government", "number", "night", "point", "home", "water", "room", "mother", "area",
    "money", "story", "fact", "month", "lot", "right", "study",
)  # fmt: skip


@dataclass(frozen=True)
class Load:
    """A load: texts to embed.

    Attributes:
        number: number of texts.
        num_words: number of words of each text. A word is one token; two special tokens surround the text.
    """

    number: int
    num_words: int

    @property
    def name(self) -> str:
        """The load's name in the report."""
        return f"{self.number:,} texts of {self.num_words + 2} tokens"

    def texts(self, seed: int) -> list[str]:
        """Return texts that no earlier round had."""
        rng = random.Random(seed)
        return [" ".join(rng.choices(_WORDS, k=self.num_words)) for _ in range(self.number)]


class System(Protocol):
    """A system that computes embeddings.

    Attributes:
        processes: the system's processes, without the client.
    """

    processes: ProcessTree

    def embed(self, texts: list[str]) -> tuple[float, list[float]]:
        """Return the seconds until all texts are embedded, and the embedding of the first text."""


class Server:
    """A server with OpenAI's API."""

    def __init__(self, stack: Stack) -> None:
        self._url = f"{stack.url}/v1/embeddings"
        self.processes = ProcessTree(stack.pid)

    def embed(self, texts: list[str]) -> tuple[float, list[float]]:
        """See System."""
        return asyncio.run(self._embed(texts))

    async def _embed(self, texts: list[str]) -> tuple[float, list[float]]:
        starts = iter(range(0, len(texts), _PER_REQUEST))
        first: list[float] = []

        async def client(http: httpx.AsyncClient) -> None:
            for start in starts:
                part = texts[start : start + _PER_REQUEST]
                body = {"model": MODEL, "input": part, "encoding_format": "base64"}
                answer = (await http.post(self._url, json=body)).raise_for_status().json()
                vectors = [array("f", base64.b64decode(item["embedding"])) for item in answer["data"]]
                if len(vectors) != len(part):
                    raise RuntimeError(f"{len(part)} texts brought {len(vectors)} embeddings.")
                if start == 0:
                    first.extend(vectors[0])

        async with httpx.AsyncClient(timeout=600) as http:
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(_AT_ONCE):
                    group.create_task(client(http))
            return time.perf_counter() - began, first


class Library:
    """sentence-transformers in a separate process."""

    def __init__(self, engine: DrivenEngine) -> None:
        self._engine = engine
        self.processes = ProcessTree(engine.pid)

    def embed(self, texts: list[str]) -> tuple[float, list[float]]:
        """See System."""
        with tempfile.TemporaryDirectory() as directory:
            given, first = Path(directory, "texts"), Path(directory, "first")
            given.write_text(json.dumps(texts))
            seconds = self._engine.embed(str(given), str(first))
            return seconds, json.loads(first.read_text())


@dataclass(frozen=True)
class Figures:
    """The results of one system with one load, one value per round.

    Attributes:
        rates: texts/s.
        cpu_ms: CPU milliseconds for each text, by service.
    """

    rates: list[float] = field(default_factory=list)
    cpu_ms: list[dict[str, float]] = field(default_factory=list)

    def total_cpu_ms(self) -> list[float]:
        """Return the CPU milliseconds of all services together for each text, one value per round."""
        return [sum(each.values()) for each in self.cpu_ms]


def measure(systems: Mapping[str, System], loads: list[Load], options: Options) -> dict[str, dict[str, Figures]]:
    """Return load -> system -> figures; RuntimeError if the systems' embeddings differ."""
    for system in systems.values():
        system.embed(loads[0].texts(0)[:_PER_REQUEST])
    figures = {name: {load.name: Figures() for load in loads} for name in systems}
    for number in range(options.rounds):
        for load in loads:
            texts = load.texts(number + 1)
            vectors = {name: _measure(system, texts, figures[name][load.name]) for name, system in systems.items()}
            for name, vector in vectors.items():
                _check(name, vector, vectors[_OURS])
        print(f"round {number + 1}/{options.rounds} is done", flush=True)
    return figures


def _measure(system: System, texts: list[str], figures: Figures) -> list[float]:
    """Embed the texts, add the measured times to the figures, and return the first embedding."""
    before = system.processes.cpu_seconds()
    seconds, vector = system.embed(texts)
    after = system.processes.cpu_seconds()
    figures.rates.append(len(texts) / seconds)
    figures.cpu_ms.append({name: (after[name] - before.get(name, 0.0)) * 1000 / len(texts) for name in after})
    return vector


def _check(name: str, vector: list[float], ours: list[float]) -> None:
    difference = max(abs(a - b) for a, b in zip(vector, ours, strict=True))
    if difference > _LARGEST_DIFFERENCE:
        raise RuntimeError(f"The embedding of {name} and ours differ by {difference:.1e}.")


def _section(figures: Mapping[str, Mapping[str, Figures]], loads: list[Load], options: Options) -> Section:
    section = Section("Embeddings: all-MiniLM-L6-v2")
    section.text(
        f"Texts/s, float32. Ours and vLLM over HTTP in requests of {_PER_REQUEST} texts, {_AT_ONCE} at a time; "
        "sentence-transformers in its process, in batches of 32. The client's CPU time is not counted."
    )
    head = [title for load in loads for title in (load.name, "CPU ms a text")]
    rows = [
        [name, *(cell for load in loads for cell in (spread(of[load.name].rates), spread(of[load.name].total_cpu_ms(), 2)))]
        for name, of in figures.items()
    ]
    section.table(["", *head], rows)
    ours = figures[_OURS]
    section.text(f"Of our CPU time a short text takes, by service: {_shares(ours[loads[0].name].cpu_ms)}.")
    peers = [name for name in figures if name != _OURS]
    if peers and not options.quick:
        bars = []
        for load in loads:
            medians = {name: median(figures[name][load.name].rates) for name in peers}
            best = max(medians, key=medians.__getitem__)
            found = median(ratios(ours[load.name].rates, figures[best][load.name].rates))
            bars.append(Bar(f"{load.name}, against {best}", _BAR, found, unit="x"))
        add_bars(section, bars)
    return section


def _shares(rounds: list[dict[str, float]]) -> str:
    return ", ".join(f"{service} {median([each[service] for each in rounds]):.2f} ms" for service in rounds[-1])


def main() -> None:
    """Run the loads with all installed systems, and write the section of the report."""
    options = read_options("embeddings", __doc__)
    model = home() / MINILM.floats
    if not model.exists():
        print("Left out: all-MiniLM-L6-v2 is not installed (make peers).", flush=True)
        return
    share = 20 if options.quick else 1
    loads = [Load(10_000 // share, 18), Load(1000 // share, 254)]
    with ExitStack() as exits:
        stack = exits.enter_context(running("--device", "cpu", model=str(model)))
        systems: dict[str, System] = {_OURS: Server(stack)}
        if options.with_peers and is_installed(SENTENCE_TRANSFORMERS, MINILM):
            driver = "benchmarks.peers.sentence_transformers_driver"
            engine = DrivenEngine(python_of("sentence"), driver, str(model))
            systems[SENTENCE_TRANSFORMERS] = Library(exits.enter_context(engine))
        if options.with_peers and is_installed(VLLM, MINILM):
            server = exits.enter_context(vllm_server(MINILM.floats, "--runner", "pooling", max_model_len=256))
            systems[VLLM] = Server(server)
        figures = measure(systems, loads, options)
    write_section("embeddings", _section(figures, loads, options), options)


if __name__ == "__main__":
    main()
