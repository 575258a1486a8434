"""Two frontends and several engine cores behind one name, each a process: routing, joining and leaving.

The engine cores listen on addresses of their own of this machine (127.0.0.2 and up); a file resolves the name.
"""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
import pytest

from benchmarks.stack import free_port
from tetrad.services.rpc.channel import open_channel
from tetrad.v1 import engine_core_pb2, engine_core_pb2_grpc

TIMEOUT_S = 60
HOOKS = Path(__file__).with_name("hooks")
AT_ONCE = 8
_names = map("s{}".format, itertools.count())


@dataclass
class Engine:
    """One engine core with its worker.

    Attributes:
        address: of its ports.
        processes: the worker's and its own.
    """

    address: str
    log: Path
    processes: list[subprocess.Popen]

    def finished(self, series: str) -> list[str]:
        """Return the names of the requests of a series that it brought to an end."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if '"request.finished"' in line]
        ids = [line["internal_id"] for line in lines if line["status"] != "FINISHED_ABORTED"]
        # cmpl-SERIES.NAME-hex
        return [each.removeprefix(f"cmpl-{series}.").rpartition("-")[0] for each in ids if f"-{series}." in each]

    def stop(self) -> None:
        stop(*self.processes)


@dataclass
class Site:
    """All of it.

    Attributes:
        urls: of the frontends.
        engines: that are always there.
    """

    directory: Path
    model: str
    ports: dict[str, int]
    urls: list[str] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)
    processes: list[subprocess.Popen] = field(default_factory=list)
    num_engines: int = 0

    def __post_init__(self) -> None:
        self.hosts = self.directory / "hosts"
        self.hosts.write_text("")

    def start(self, name: str, module: str, *flags: str) -> subprocess.Popen:
        paths = [str(HOOKS), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HOSTS_OF_TESTS": str(self.hosts)}
        with (self.directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen([sys.executable, "-m", module, *flags], stdout=log, stderr=log, env=environment)

    def start_engine(self) -> Engine:
        """Start an engine core and its worker; nobody is told its address yet."""
        number = self.num_engines
        self.num_engines += 1
        address, worker = f"127.0.0.{2 + number}", f"unix:{self.directory}/w{number}"
        sim = ("--device", "sim", "--sim-seconds-per-step", "0.004")
        processes = [
            self.start(f"worker{number}", "tetrad.worker_svc", "--listen", worker, *sim),
            self.start(
                f"engine{number}",
                "tetrad.engine_core_svc",
                *("--listen", f"{address}:{self.ports['engine']}", "--admin-listen", f"{address}:{self.ports['admin']}"),
                *("--worker-target", worker, "--tokenizer-targets", self.tokenizer, "--model", self.model),
                *("--data-parallel-rank", str(number), "--drain-timeout-s", "0.3"),
            ),
        ]
        return Engine(address, self.directory / f"engine{number}.log", processes)

    @property
    def tokenizer(self) -> str:
        return f"unix:{self.directory}/t"

    def start_frontend(self) -> None:
        port = free_port()
        self.urls.append(f"http://127.0.0.1:{port}")
        targets = ("--engine-targets", f"dns:///engines.test:{self.ports['engine']}")
        targets += ("--engine-admin-targets", f"dns:///engines.test:{self.ports['admin']}")
        process = self.start(
            f"frontend{port}",
            "tetrad.frontend",
            *("--port", str(port), "--tokenizer-targets", self.tokenizer, *targets),
            *("--dns-refresh-interval-s", "0.3", "--responses-store", "none"),
        )
        self.processes.append(process)

    def name_stands_for(self, *engines: Engine) -> None:
        """Write what the engines' name stands for."""
        new = self.hosts.with_suffix(".new")
        new.write_text("".join(f"{engine.address} engines.test\n" for engine in engines))
        new.replace(self.hosts)

    def num_engines_known(self, url: str) -> int:
        """Return how many engine cores a frontend has sessions with; 0 while it is not ready."""
        try:
            if httpx.get(f"{url}/health").status_code != 200:
                return 0
            lines = httpx.get(f"{url}/metrics").text.splitlines()
        except httpx.TransportError:
            return 0
        return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith("tetrad:num_engines_connected"))

    def wait_for(self, num_engines: int) -> None:
        """Wait until every frontend has sessions with so many engine cores."""
        deadline = time.monotonic() + TIMEOUT_S
        while any(self.num_engines_known(url) != num_engines for url in self.urls):
            assert time.monotonic() < deadline, "\n".join(log.read_text()[-2000:] for log in self.directory.glob("*.log"))
            time.sleep(0.1)

    @contextmanager
    def one_more_engine(self) -> Iterator[Engine]:
        """A third engine core, which the name stands for from now on, and no longer afterwards."""
        engine = self.start_engine()
        try:
            self.name_stands_for(*self.engines, engine)
            self.wait_for(len(self.engines) + 1)
            yield engine
        finally:
            engine.stop()
            self.name_stands_for(*self.engines)
            self.wait_for(len(self.engines))


def stop(*processes: subprocess.Popen) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.wait(15)


@pytest.fixture(scope="module")
def site(tmp_path_factory, smollm2) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("s")
    site = Site(directory, str(smollm2), {"engine": free_port(), "admin": free_port()})
    try:
        site.processes.append(
            site.start("tokenizer", "tetrad.tokenizer_svc", "--listen", site.tokenizer, "--model", site.model)
        )
        site.engines = [site.start_engine(), site.start_engine()]
        site.name_stands_for(*site.engines)
        for _ in range(2):
            site.start_frontend()
        site.wait_for(2)
        yield site
    finally:
        stop(*site.processes, *(process for engine in site.engines for process in engine.processes))


def tokens(name: str, count: int) -> list[int]:
    """Return a run of tokens that goes by this name."""
    return Random(name).choices(range(1000, 40_000), k=count)


async def ask(clients, series, prompts, *, max_tokens=16, headers=None, at_once=AT_ONCE) -> dict[str, str]:
    """Send prompts by name, so many at the same time, to each frontend in turn; return the texts."""
    places, texts = asyncio.Semaphore(at_once), {}

    async def ask_one(client, name, prompt):
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "seed": 1, "ignore_eos": True}
        async with places:
            sent = {"X-Request-Id": f"{series}.{name}"} | (headers or {})
            response = await client.post("/v1/completions", json=body, headers=sent)
        assert response.status_code == 200, response.text
        texts[name] = response.json()["choices"][0]["text"]

    await asyncio.gather(
        *(ask_one(client, *each) for client, each in zip(itertools.cycle(clients), prompts.items(), strict=False))
    )
    return texts


@pytest.fixture
async def frontends(site):
    """A client of each frontend."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S)) for url in site.urls]


@pytest.fixture(params=[1, 2], ids=["one frontend", "two frontends"])
def asked(request, frontends):
    return frontends[: request.param]


async def test_distinct_prompts_are_spread_evenly(site, asked):
    series = next(_names)

    await ask(asked, series, {str(i): tokens(f"{series} {i}", 100) for i in range(60)})
    counts = [len(engine.finished(series)) for engine in site.engines]

    assert sum(counts) == 60
    assert max(counts) <= 1.3 * min(counts)


async def test_prompts_with_a_common_prefix_stay_with_one_engine(site, asked):
    series = next(_names)
    prompts = {f"{g}:{i}": tokens(f"{series} {g}", 320) + tokens(f"{series} {g} {i}", 20) for g in range(4) for i in range(20)}
    names = list(prompts)
    Random(series).shuffle(names)

    await ask(asked, series, {name: prompts[name] for name in names})

    groups = [Counter(name.partition(":")[0] for name in engine.finished(series)) for engine in site.engines]
    for group in "0123":
        counts = [engine[group] for engine in groups]
        assert sum(counts) == 20
        assert max(counts) >= 18, (group, counts)


async def test_a_frontend_finds_what_another_brought_to_an_engine(site, frontends):
    """By the engine's events: it never sent this prefix itself."""
    series = next(_names)
    prefix = tokens(series, 320)
    await ask(frontends[:1], series, {"first": [*prefix, 5]})

    await ask(frontends[1:], series, {str(i): prefix + tokens(f"{series} {i}", 20) for i in range(5)}, at_once=1)

    assert sorted(len(engine.finished(series)) for engine in site.engines) == [0, 6]


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_pinned_request_goes_to_the_engine_of_its_rank(site, frontends, rank):
    series = next(_names)

    prompts = {str(i): tokens(f"{series} {i}", 30) for i in range(6)}
    await ask(frontends, series, prompts, headers={"X-data-parallel-rank": str(rank)})

    assert len(site.engines[rank].finished(series)) == 6


async def test_a_rank_that_nobody_has_is_refused(frontends):
    body = {"prompt": "a", "max_tokens": 1}

    answers = [
        await frontends[0].post("/v1/completions", json=body, headers={"X-data-parallel-rank": rank}) for rank in ("2", "x")
    ]

    assert [answer.status_code for answer in answers] == [400, 400]
    assert "data_parallel_rank 2 is out of range [0, 2)" in answers[0].text
    assert "whole number" in answers[1].text


@pytest.mark.parametrize("order", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "drained"])
async def test_an_engine_joins_by_its_name_takes_its_part_and_goes_under_load_with_nothing_lost(site, frontends, order):
    """Its name still stands for it, as it does for a moment anywhere; drained, it hands back what it has."""
    series = next(_names)
    prompts = {str(i): tokens(f"{series} {i}", 40) for i in range(45)}
    expected = await ask(frontends, series, prompts, max_tokens=150, at_once=45)

    with site.one_more_engine() as extra:
        under_way = asyncio.create_task(ask(frontends, f"{series}+", prompts, max_tokens=150, at_once=45))
        await until_it_runs_some(extra, site)
        os.kill(extra.processes[1].pid, order)
        texts = await asyncio.wait_for(under_way, TIMEOUT_S)

    assert texts == expected
    ended = [len(engine.finished(f"{series}+")) for engine in site.engines]
    assert sum(ended) > 45 - 15, "the others went on for it"


async def until_it_runs_some(engine: Engine, site: Site) -> None:
    """Wait until an engine core runs a fair part of what there is."""
    async with asyncio.timeout(TIMEOUT_S), open_channel(f"{engine.address}:{site.ports['admin']}") as channel:
        stub = engine_core_pb2_grpc.EngineCoreAdminServiceStub(channel)
        async for message in stub.WatchLoad(engine_core_pb2.WatchLoadRequest(min_interval_ms=1)):
            if message.load.stats.num_running_reqs >= 10:
                return
