"""Tokenizer link: fetches the model's vocabulary from a tokenizer service when the first constrained request needs it.

Engine cores start and serve without a tokenizer; then only constrained requests are refused. Of several equal tokenizers the
first answer is used and kept. If the connection to a tokenizer is lost, the request to it is repeated.
"""

import asyncio
import hashlib
import io
import zipfile
from collections.abc import Sequence
from functools import partial

import grpc

from tetrad.engine_core_svc.structured_output.vocabulary import Vocabulary
from tetrad.services.errors import InternalError, Unavailable, Unsupported
from tetrad.services.log import get_logger
from tetrad.services.rpc.carrier import GRPC, Carrier
from tetrad.services.rpc.status import from_rpc_error, has_details
from tetrad.services.timers.running_time import running_timeout
from tetrad.services.tls.identity import TlsFiles
from tetrad.v1 import tokenizer_pb2, tokenizer_pb2_grpc

_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
# Status codes after damaged bytes on a connection; a tokenizer's own errors with these codes have details.
_BROKEN = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
_RETRY_S = 0.2

_Answer = tuple[tokenizer_pb2_grpc.TokenizerServiceStub, tokenizer_pb2.GetInfoResponse]

log = get_logger()


class TokenizerLink:
    """The connections to the tokenizers, opened when first needed.

    Args:
        targets: their addresses; empty: there is no tokenizer.
        vocab_size: size of the model's vocabulary.
        max_message_bytes: maximum size of a message on the channels.
        timeout_s: maximum seconds until one of them has answered, including repeated requests.
        tls: identity of this process; None: connections use no TLS.
        carrier: connects to the tokenizers.
    """

    def __init__(
        self,
        targets: Sequence[str],
        vocab_size: int,
        *,
        max_message_bytes: int,
        timeout_s: float,
        tls: TlsFiles | None = None,
        carrier: Carrier = GRPC,
    ) -> None:
        self._carrier = carrier
        self._tls = tls
        self._targets = targets
        self._vocab_size = vocab_size
        self._max_message_bytes = max_message_bytes
        self._timeout_s = timeout_s
        self._fetching: asyncio.Task[Vocabulary] | None = None

    async def vocabulary(self) -> Vocabulary:
        """Return the model's vocabulary.

        Raises:
            Unsupported: no tokenizer is configured, or the tokenizer cannot be used.
            Unavailable: no tokenizer can be reached.
        """
        if not self._targets:
            raise Unsupported(
                "Structured outputs need a tokenizer, and this engine core has none; start it with --tokenizer-targets.",
                field="structured_outputs",
            )
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch(), name="vocabulary.fetch")
            self._fetching.add_done_callback(self._note_fetched)
        # It is fetched once for all waiting callers, and fails once for all; a cancelled caller does not cancel it.
        return await asyncio.shield(self._fetching)

    def _note_fetched(self, task: asyncio.Task[Vocabulary]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._fetching = None  # the next request tries again

    async def _fetch(self) -> Vocabulary:
        connect = partial(self._carrier.connect, max_message_bytes=self._max_message_bytes, tls=self._tls)
        channels = [connect(target) for target in self._targets]
        stubs = [tokenizer_pb2_grpc.TokenizerServiceStub(channel) for channel in channels]
        try:
            async with running_timeout(self._timeout_s):
                while True:
                    try:
                        return await self._read(*await _first_answer(stubs))
                    except grpc.aio.AioRpcError as error:
                        if not _is_lost(error):
                            raise from_rpc_error(error) from error
                    await asyncio.sleep(_RETRY_S)
        except TimeoutError:
            targets = ", ".join(self._targets)
            raise Unavailable(f"No tokenizer answered within {self._timeout_s:g} s at {targets}; try again later.") from None
        finally:
            await asyncio.gather(*(channel.close() for channel in channels))

    async def _read(self, stub: tokenizer_pb2_grpc.TokenizerServiceStub, info: tokenizer_pb2.GetInfoResponse) -> Vocabulary:
        bundle, sha256 = bytearray(), ""
        async for chunk in stub.GetBundle(tokenizer_pb2.GetBundleRequest()):
            bundle += chunk.data
            sha256 = chunk.sha256
        vocabulary = await asyncio.to_thread(_unpack, bytes(bundle), sha256, tuple(info.eos_token_ids), self._vocab_size)
        log.info("vocabulary.fetched", tokenizer=info.tokenizer_hash, bundle=sha256, size=vocabulary.tokens.vocab_size)
        return vocabulary


async def _first_answer(stubs: Sequence[tokenizer_pb2_grpc.TokenizerServiceStub]) -> _Answer:
    """Return the tokenizer that answers first, and its answer. Raises AioRpcError if every tokenizer refuses."""
    asking = [asyncio.create_task(_ask(stub)) for stub in stubs]
    refusal: grpc.aio.AioRpcError | None = None
    try:
        for answering in asyncio.as_completed(asking):
            try:
                return await answering
            except grpc.aio.AioRpcError as error:
                refusal = error  # another tokenizer may answer
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    assert refusal is not None
    raise refusal


async def _ask(stub: tokenizer_pb2_grpc.TokenizerServiceStub) -> _Answer:
    """Return a tokenizer and its answer; try again if the connection is lost. Raises AioRpcError if it refuses."""
    while True:
        try:
            return stub, await stub.GetInfo(tokenizer_pb2.GetInfoRequest(), wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            if not _is_lost(error):
                raise
        await asyncio.sleep(_RETRY_S)


def _is_lost(error: grpc.aio.AioRpcError) -> bool:
    return error.code() in _LOST or (error.code() in _BROKEN and not has_details(error))


def _unpack(bundle: bytes, sha256: str, eos_token_ids: tuple[int, ...], vocab_size: int) -> Vocabulary:
    if hashlib.sha256(bundle).hexdigest() != sha256:
        raise InternalError("The tokenizer's bundle does not match its checksum.")
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        tokenizer_json = archive.read("tokenizer.json").decode()
    return Vocabulary(tokenizer_json, eos_token_ids, vocab_size)
