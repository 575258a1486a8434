"""Readiness: whether a service accepts requests, according to grpc.health.v1.

Called by the supervisor, by `tetrad status`, and as `python -m tetrad.readiness ADDRESS SERVICE` by the health checks of
containers. Watches instead of polling; continues to watch when the service ends. Knows nothing about processes.
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tetrad.services.errors import TetradError, Unavailable, one_line
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.status import from_rpc_error
from tetrad.services.settings import TlsSettings
from tetrad.services.tls.identity import TlsFiles

_PAUSE_S = 0.1
_LOOK_S = 0.25
_STILL_LOOKS = 4
_CHECK_TIMEOUT_S = 4.0
_SERVING = health_pb2.HealthCheckResponse.SERVING


@dataclass(frozen=True)
class HealthTarget:
    """Where a service reports its health.

    Args:
        address: "host:port" or "unix:/path".
        service: full gRPC name ("tetrad.v1.WorkerService").
    """

    address: str
    service: str


class Stalled(Unavailable):
    """The connection to a service broke, and the service does not answer on a new one."""


async def watch_readiness(
    target: HealthTarget, *, stall_timeout_s: float, stands_still: Callable[[], bool] = lambda: False
) -> AsyncIterator[bool]:
    """Yield whether the service accepts requests: once known, then at each change. Waits for the service's start; never ends.

    Args:
        target: the service to watch. Its process must be alive: an ended process cannot be distinguished from one that hangs.
        stall_timeout_s: the longest time that a service whose stream broke may take to answer.
        stands_still: returns whether the process has done nothing since the last call. After one idle second it is stalled.

    Raises:
        Stalled: the service does not answer. Keep-alive pings break the stream to a stopped process (services/rpc/channel.py).
        TetradError: the server at the address has no health service (another kind of server).
    """
    async with contextlib.AsyncExitStack() as stack:
        channel = await stack.enter_async_context(open_channel(target.address))
        stub, ready = health_pb2_grpc.HealthStub(channel), False
        while True:
            # wait_for_ready: a call to a service that has not started yet waits until it has.
            call = stub.Watch(health_pb2.HealthCheckRequest(service=target.service), wait_for_ready=True)
            try:
                async for response in call:
                    if ready != (response.status == _SERVING):
                        ready = not ready
                        yield ready
            except grpc.aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    raise from_rpc_error(error) from error
            if ready:
                ready = False
                yield ready
            # Avoids a busy loop if a service ends every call at once.
            await asyncio.sleep(_PAUSE_S)
            await _check_answers(stub, stall_timeout_s, stands_still)


async def _check_answers(stub: health_pb2_grpc.HealthStub, timeout_s: float, stands_still: Callable[[], bool]) -> None:
    """Return at any answer of the service; raise Stalled if there is none in time, or if its process does nothing meanwhile.

    Waits in short intervals and counts them: if this process is stopped and continued, only one interval is lost.
    """
    num_looks = max(1, round(timeout_s / _LOOK_S))
    num_still = 0
    asking = asyncio.ensure_future(_ask(stub))
    try:
        for _ in range(num_looks):
            await asyncio.wait({asking}, timeout=timeout_s / num_looks)
            if asking.done():
                return
            num_still = num_still + 1 if stands_still() else 0
            if num_still >= _STILL_LOOKS:
                raise Stalled(f"no answer, and no CPU time used for {_STILL_LOOKS * _LOOK_S:g} s")
        raise Stalled(f"no answer for {timeout_s:g} s")
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def _ask(stub: health_pb2_grpc.HealthStub) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError):  # an error is also an answer
        await stub.Check(health_pb2.HealthCheckRequest(service=""), wait_for_ready=True)


async def check_readiness(target: HealthTarget, *, timeout_s: float, tls: TlsFiles | None = None) -> bool:
    """Return whether the service accepts requests now.

    Raises:
        TetradError: the service cannot be reached within `timeout_s` seconds, or the server is of another kind.
    """
    async with open_channel(target.address, tls=tls) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            response = await stub.Check(health_pb2.HealthCheckRequest(service=target.service), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
    return bool(response.status == _SERVING)


_PREFIXES = {
    "tetrad.v1.TokenizerService": "TETRAD_TOKENIZER_",
    "tetrad.v1.EngineCoreService": "TETRAD_ENGINE_CORE_",
    "tetrad.v1.EngineCoreAdminService": "TETRAD_ENGINE_CORE_",
    "tetrad.v1.WorkerService": "TETRAD_WORKER_",
    "tetrad.v1.InferenceService": "TETRAD_FRONTEND_",
}


class _PublicTlsSettings(TlsSettings):
    """The settings of a service's certificates, and those of a frontend's public ports."""

    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None


def own_identity(service: str) -> TlsFiles | None:
    """Return the TLS files of a service from this environment's variables, which health checks in its container share.

    A certificate that a frontend presents to the public alone is trusted itself: its authority need not be known here.
    """
    settings = _PublicTlsSettings(_env_prefix=_PREFIXES.get(service, "TETRAD_"))
    if settings.ssl_certfile is None:
        return settings.tls
    if settings.tls_cert_file is None:
        return TlsFiles(settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_certfile)
    return TlsFiles(settings.tls_cert_file, settings.tls_key_file, settings.ssl_certfile)


def _main(address: str, service: str) -> int:
    """Return 0 if the service accepts requests, else 1 with one line on stderr. Uses the service's own TLS certificate."""
    try:
        tls = own_identity(service)
        ready = asyncio.run(check_readiness(HealthTarget(address, service), timeout_s=_CHECK_TIMEOUT_S, tls=tls))
    except (TetradError, ValueError) as error:
        sys.stderr.write(f"{address}: {one_line(error)}\n")
        return 1
    if not ready:
        sys.stderr.write(f"{address}: {service} does not take work now\n")
    return 0 if ready else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tetrad.readiness", description="Exit with 0 if a service takes work now.")
    parser.add_argument("address", metavar="ADDRESS", help="host:port or unix:/path.")
    parser.add_argument(
        "service", metavar="SERVICE", help='full gRPC name, as tetrad.v1.WorkerService; "": is it alive at all.'
    )
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    sys.exit(_main(given.address, given.service))
