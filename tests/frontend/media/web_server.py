"""A web server on the loopback interface, which answers each path with bytes that a test chooses."""

import asyncio
from contextlib import asynccontextmanager


def answer(body=b"file", status="200 OK", **headers):
    """Return the bytes of an HTTP answer."""
    fields = {"content-type": "image/png", "content-length": str(len(body))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items() if value is not None)]
    return "\r\n".join([*lines, "", ""]).encode() + body


class WebServer:
    """`answers`: path -> bytes; `requests`: the request heads received."""

    def __init__(self, port):
        self.port = port
        self.answers = {}
        self.requests = []
        self.hung = asyncio.Event()
        self.hung.set()

    def url(self, path="/a.png", host="127.0.0.1"):
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def running_web_server():
    async def serve(reader, writer):
        start = await reader.readexactly(1)
        if start != b"G":  # no GET: it may be TLS
            writer.close()
            return
        head = (start + await reader.readuntil(b"\r\n\r\n")).decode()
        server.requests.append(head)
        await server.hung.wait()
        writer.write(server.answers.get(head.split()[1], answer(b"no", "404 Not Found")))
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    server = WebServer(listener.sockets[0].getsockname()[1])
    async with listener:
        yield server
        server.hung.set()
