"""An application that echoes the request, behind the server's connections."""

import asyncio
import contextlib
import json
import socket
from contextlib import asynccontextmanager

from tetrad.frontend.api.http.middleware.methods import Methods
from tetrad.frontend.api.http.server.server import HttpServer
from tetrad.frontend.api.http.server.timed_connection import ConnectionLimits

LIMITS = ConnectionLimits(
    max_connections=100,
    max_header_bytes=8192,
    max_body_bytes=1 << 20,
    header_timeout_s=10.0,
    body_timeout_s=10.0,
    slow_client_timeout_s=10.0,
)


class Echo:
    """Answers each request with itself as JSON. `asked` has what arrived; while `gate` is closed, no answer begins."""

    def __init__(self) -> None:
        self.asked: list[dict] = []
        self._was_asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body, more = b"", scope["path"] != "/unread"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
        headers = [name.decode() for name, _ in scope["headers"]]
        query = scope["query_string"].decode()
        self.asked.append({"method": scope["method"], "path": scope["path"], "query": query, "headers": headers})
        self.asked[-1]["body"] = body.decode()
        self._was_asked.set()
        await self.gate.wait()
        answer = json.dumps(self.asked[-1]).encode()
        head = [(b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": answer, "more_body": False})

    async def until_asked(self):
        async with asyncio.timeout(10):
            await self._was_asked.wait()


@asynccontextmanager
async def serving(app):
    """Serve an application as the frontend serves its own."""
    server = HttpServer(Methods(app), host="127.0.0.1", port=0, keep_alive_timeout_s=60, limits=LIMITS)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


class Answer:
    """One response. `informational` has the statuses of the 1xx responses before it."""

    def __init__(self, status, headers, body, informational):
        self.status, self.headers, self.body, self.informational = status, headers, body, informational

    def json(self):
        return json.loads(self.body)

    @property
    def closes(self):
        return self.headers.get("connection") == "close"


class Client:
    """A connection on which a test writes bytes and reads whole answers."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data):
        self.writer.write(data)

    async def answer(self, *, to_head=False):
        async with asyncio.timeout(10):
            informational = []
            while True:
                head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
                status = int(head[0].split()[1])
                if status >= 200:
                    break
                informational.append(status)
            headers = dict(line.split(": ", 1) for line in head[1:] if line)
            length = 0 if to_head or status == 204 else int(headers["content-length"])
            return Answer(status, headers, await self.reader.readexactly(length), informational)

    async def until(self, end):
        """Read to these bytes."""
        async with asyncio.timeout(10):
            await self.reader.readuntil(end)

    async def rest(self):
        """Return what comes until the server closes the connection."""
        async with asyncio.timeout(10):
            return await self.reader.read()


@asynccontextmanager
async def connected(server):
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
