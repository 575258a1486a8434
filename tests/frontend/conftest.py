"""Fixtures: a fake tokenizer and engine, an AsyncLLM on them, and a whole frontend on real ports."""

import asyncio
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.carriers import make_carrier
from tests.frontend import fakes
from tests.frontend.fakes.images import IMAGES
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.service import serve


@pytest.fixture
def sockets():
    # Unix socket paths are short: pytest's own directories are not.
    with tempfile.TemporaryDirectory(prefix="tt") as path:
        yield Path(path)


@pytest.fixture
def carrier(request):
    """What carries messages between the frontend and the fakes."""
    return make_carrier(request)


@pytest.fixture
async def tokenizer(sockets, carrier):
    fake = fakes.FakeTokenizer(sockets / "t")
    fake.carrier = carrier
    await fake.start()
    yield fake
    await fake.kill()


@pytest.fixture
def make_engine():
    """Makes the engine core that the frontend uses, at a socket; modules with another kind of engine replace this."""
    return fakes.FakeEngine


@pytest.fixture
async def engine(sockets, carrier, make_engine):
    async with fakes.running_engine(make_engine(sockets / "e"), carrier) as fake:
        yield fake


def make_settings(tokenizer, engine, **changes):
    fields = {"tokenizer_targets": (tokenizer.target,), "engine_targets": (engine.target,), "port": 0}
    fields |= {"engine_admin_targets": (engine.target,)}
    fields |= {"ready_timeout_s": 10.0, "recovery_timeout_s": 10.0, "drain_timeout_s": 2.0}
    fields |= {"responses_store": ":memory:", "profile_dir": f"{tokenizer.target.removeprefix('unix:')}.profiles"}
    return FrontendSettings(**(fields | changes))


@pytest.fixture
async def connect(tokenizer, engine, carrier):
    """`await connect(**settings)` gives an AsyncLLM, closed at the end."""
    opened = []

    async def open_llm(**changes):
        opened.append(await AsyncLLM.connect(make_settings(tokenizer, engine, **changes), carrier))
        return opened[-1]

    yield open_llm
    for llm in opened:
        await llm.close()


@pytest.fixture
async def llm(connect):
    return await connect()


class Frontend:
    """A running frontend: `http` is a client of it, `port` and `grpc_address` are where it listens."""

    def __init__(self):
        self.shutdown = asyncio.Event()
        self.port = 0
        self.grpc_address = None
        self.task = None
        self.http = None

    async def stop(self):
        self.shutdown.set()
        await self.task


@asynccontextmanager
async def running_frontend(settings):
    frontend, ready = Frontend(), asyncio.Event()

    def on_ready(port, grpc_address):
        frontend.port, frontend.grpc_address = port, grpc_address
        ready.set()

    frontend.task = asyncio.create_task(serve(settings, frontend.shutdown, on_ready=on_ready))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({frontend.task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{frontend.port}", timeout=20) as client:
            frontend.http = client
            yield frontend
    finally:
        await frontend.stop()


@pytest.fixture
async def serve_frontend(tokenizer, engine):
    """`serve_frontend(**settings)` is an async context manager that gives a Frontend."""
    return lambda **changes: running_frontend(make_settings(tokenizer, engine, **changes))


@pytest.fixture
async def frontend(serve_frontend):
    async with serve_frontend(listen="127.0.0.1:0") as running:
        yield running


@pytest.fixture
async def seeing(tokenizer, engine, serve_frontend):
    """A frontend of a model that reads images."""
    tokenizer.modalities = engine.modalities = IMAGES
    async with serve_frontend(listen="127.0.0.1:0") as running:
        yield running


@pytest.fixture
def http(frontend):
    return frontend.http
