"""Tokenizer bundle client: forwards the tokenizer's files from any replica to a gateway that has its own tokenizer."""

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

import grpc

from tetrad.frontend.tokenizer.replicas import Replica, TokenizerReplicas
from tetrad.services.errors import Unavailable
from tetrad.services.rpc.channel import is_call_closed
from tetrad.services.rpc.status import from_rpc_error
from tetrad.services.timers.running_time import running_timeout


class BundleChunk(NamedTuple):
    """A piece of a zip archive; the last piece has `sha256`, hexadecimal, of the whole archive."""

    data: bytes
    sha256: str


async def bundle_chunks(replicas: TokenizerReplicas, timeout_s: float) -> AsyncGenerator[BundleChunk, None]:
    """Yield the archive in pieces. A broken download cannot be continued: the caller repeats it.

    Raises:
        Unavailable: no tokenizer was connected within `timeout_s`, or it was lost.
    """
    replica = await _any_of(replicas, timeout_s)
    try:
        async for chunk in replica.link.get_bundle(timeout_s=timeout_s):
            yield BundleChunk(chunk.data, chunk.sha256)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    except asyncio.CancelledError as error:
        if not is_call_closed(error):
            raise
        raise Unavailable(f"The tokenizer at {replica.target} left; try again.") from None


async def _any_of(replicas: TokenizerReplicas, timeout_s: float) -> Replica:
    try:
        async with running_timeout(timeout_s):
            # The only usable replica may be lost again before this task continues.
            while not (usable := replicas.in_order()):
                await replicas.wait_usable()
    except TimeoutError:
        raise Unavailable(f"The tokenizer at {replicas} did not answer within {timeout_s:g} s; try again later.") from None
    return usable[0]
