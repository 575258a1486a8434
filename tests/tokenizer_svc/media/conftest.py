"""Tiny models that read images, served by the real service on a Unix socket."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.vision_files import save_vision_model
from tetrad.services.rpc.channel import open_channel
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.tokenizer_svc.service import serve
from tetrad.v1 import tokenizer_pb2, tokenizer_pb2_grpc

ServeModel = Callable[..., AbstractAsyncContextManager[tokenizer_pb2_grpc.TokenizerServiceStub]]
ModelDirectory = Callable[[str], Path]
StubOf = Callable[[str], Awaitable[tokenizer_pb2_grpc.TokenizerServiceStub]]
SharedStub = Callable[[str, Path], Awaitable[tokenizer_pb2_grpc.TokenizerServiceStub]]


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> ModelDirectory:
    """Returns the directory of a kind of vision model, written once."""
    found: dict[str, Path] = {}

    def write(kind: str) -> Path:
        if kind not in found:
            found[kind] = tmp_path_factory.mktemp("vision") / kind.replace(" ", "_")
            save_vision_model(found[kind], kind)
        return found[kind]

    return write


class _Servers:
    """Services with their default settings, each in a thread, for all tests of a session."""

    def __init__(self, sockets: Path) -> None:
        self._sockets = sockets
        self._addresses: dict[str, str] = {}
        self._ends: list[tuple[threading.Thread, asyncio.AbstractEventLoop, asyncio.Event]] = []

    def address(self, kind: str, directory: Path) -> str:
        """Return the address of a model's service."""
        if kind not in self._addresses:
            self._addresses[kind] = f"unix:{self._sockets}/{len(self._addresses)}"
            settings = TokenizerSettings(listen=self._addresses[kind], model=str(directory), image_processes=1)
            loop, shutdown = asyncio.new_event_loop(), asyncio.Event()
            thread = threading.Thread(target=loop.run_until_complete, args=(serve(settings, shutdown),))
            thread.start()
            self._ends.append((thread, loop, shutdown))
        return self._addresses[kind]

    def close(self) -> None:
        """Stop all services."""
        for thread, loop, shutdown in self._ends:
            loop.call_soon_threadsafe(shutdown.set)
            thread.join()
            loop.close()


@pytest.fixture(scope="session")
def _servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Servers]:
    servers = _Servers(tmp_path_factory.mktemp("served"))
    yield servers
    servers.close()


@pytest.fixture
async def stub_of(shared_stub: SharedStub, model_directory: ModelDirectory) -> StubOf:
    """Returns a stub of a kind's service, which all tests share."""

    async def connect(kind: str) -> tokenizer_pb2_grpc.TokenizerServiceStub:
        return await shared_stub(kind, model_directory(kind))

    return connect


@pytest.fixture
async def shared_stub(_servers: _Servers) -> AsyncIterator[SharedStub]:
    """Returns a stub of the service of a model's directory, which all tests share under a name."""
    async with contextlib.AsyncExitStack() as channels:

        async def connect(name: str, directory: Path) -> tokenizer_pb2_grpc.TokenizerServiceStub:
            channel = open_channel(_servers.address(name, directory))
            channels.push_async_callback(channel.close)
            stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
            await stub.GetInfo(tokenizer_pb2.GetInfoRequest(), wait_for_ready=True)
            return stub

        yield connect


@pytest.fixture
def serve_model(tmp_path: Path) -> ServeModel:
    """Serves a model's directory with these settings; gives a stub."""

    @contextlib.asynccontextmanager
    async def run(directory: Path, **fields: Any) -> AsyncIterator[tokenizer_pb2_grpc.TokenizerServiceStub]:
        settings = TokenizerSettings(listen=f"unix:{tmp_path}/tokenizer", model=str(directory), image_processes=1, **fields)
        shutdown = asyncio.Event()
        running = asyncio.create_task(serve(settings, shutdown))
        channel = open_channel(settings.listen)
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        try:
            await stub.GetInfo(tokenizer_pb2.GetInfoRequest(), wait_for_ready=True)
            yield stub
        finally:
            await channel.close()
            shutdown.set()
            await running

    return run


def item(data: bytes, **fields: str) -> tokenizer_pb2.MediaItem:
    """Return an image of a request."""
    return tokenizer_pb2.MediaItem(modality="image", data=data, **fields)


def chat(parts: Sequence[str | bytes], **fields: Any) -> tokenizer_pb2.RenderChatRequest:
    """Return a conversation of one message with these texts and images in their order."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in parts]
    return tokenizer_pb2.RenderChatRequest(
        messages_json=json.dumps([{"role": "user", "content": content}]).encode(),
        media=[item(part) for part in parts if isinstance(part, bytes)],
        **fields,
    )
