"""Serves the HTTP and gRPC APIs of a frontend on Unix sockets, so that clients may go away in the midst of an answer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import httpx

from tests.combinations.asked import Client
from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.grpc.call_limits import CallLimits
from tetrad.frontend.api.grpc.servicer import public_services
from tetrad.frontend.api.http.app import create_app
from tetrad.frontend.api.http.server.server import HttpServer
from tetrad.frontend.api.http.server.timed_connection import ConnectionLimits
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.services.rpc.server import Server
from tetrad.v1 import inference_pb2_grpc

WAIT_S = 120


@asynccontextmanager
async def served(llm: AsyncLLM, directory: Path) -> AsyncIterator[Client]:
    """Serve a frontend, and yield its client; the sockets are in the directory."""
    models, settings, guard = ModelDirectory.alone(llm), llm.settings, Guard(llm.settings)
    http_server = HttpServer(
        create_app(models, settings, guard),
        host="",
        port=0,
        uds=directory / "http",
        keep_alive_timeout_s=60,
        limits=ConnectionLimits.of(settings, max_connections=100),
    )
    address = f"unix:{directory}/grpc"
    grpc_server = Server(
        settings.model_copy(update={"listen": address}),
        public_services(models, CallLimits(None), max_pooling_inputs=100, max_upload_bytes=1 << 20),
    )
    await grpc_server.start()
    await http_server.start()
    transport = httpx.AsyncHTTPTransport(uds=str(directory / "http"))
    try:
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://test", timeout=WAIT_S) as http,
            grpc.aio.insecure_channel(address) as channel,
        ):
            yield Client(llm, http, inference_pb2_grpc.InferenceServiceStub(channel))
    finally:
        await http_server.stop()
        await grpc_server.stop()
