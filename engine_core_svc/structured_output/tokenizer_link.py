"""Tokenizer link: fetches the model's vocabulary from a tokenizer service when the first constrained request needs it.

Engine cores start and serve without a tokenizer; only constrained requests are refused then. Of several equal tokenizers the
first answer is taken, and kept.
"""

import asyncio
import hashlib
import io
import zipfile
from collections.abc import Sequence
from functools import partial

import grpc

from tetrad.engine_core_svc.structured_output.vocabulary import Vocabulary
from tetrad.services.errors import InternalError, TetradError, Unavailable, Unsupported
from tetrad.services.log import get_logger
from tetrad.services.rpc.carrier import GRPC, Carrier
from tetrad.services.rpc.status import from_rpc_error
from tetrad.services.timers.running_time import running_timeout
from tetrad.services.tls.identity import TlsFiles
from tetrad.v1 import tokenizer_pb2, tokenizer_pb2_grpc

_FETCH_TIMEOUT_S = 10.0

log = get_logger()


class TokenizerLink:
    """The connections to the tokenizers, opened when first needed.

    Args:
        targets: their addresses; none: there is no tokenizer.
        vocab_size: of the model.
        max_message_bytes: of the channels.
        timeout_s: how long it may take until one of them has answered.
        tls: identity of this process; None: connections are plain.
        carrier: to the tokenizers.
    """

    def __init__(
        self,
        targets: Sequence[str],
        vocab_size: int,
        *,
        max_message_bytes: int,
        timeout_s: float = _FETCH_TIMEOUT_S,
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
            Unsupported: no tokenizer is configured, or one that cannot be used.
            Unavailable: none can be reached.
        """
        if not self._targets:
            raise Unsupported(
                "Structured outputs need a tokenizer, and this engine core has none; start it with --tokenizer-targets.",
                field="structured_outputs",
            )
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch(), name="vocabulary.fetch")
            self._fetching.add_done_callback(self._note_fetched)
        # However many wait, it is fetched once, and fails once for all of them; one that goes away does not end it.
        return await asyncio.shield(self._fetching)

    def _note_fetched(self, task: asyncio.Task[Vocabulary]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._fetching = None  # the next request tries again

    async def _fetch(self) -> Vocabulary:
        connect = partial(self._carrier.connect, max_message_bytes=self._max_message_bytes, tls=self._tls)
        channels = [connect(target) for target in self._targets]
        asking = [asyncio.create_task(_ask(tokenizer_pb2_grpc.TokenizerServiceStub(channel))) for channel in channels]
        error: TetradError = Unavailable(
            f"No tokenizer answered within {self._timeout_s:g} s at {', '.join(self._targets)}; try again later."
        )
        try:
            async with running_timeout(self._timeout_s):
                for answering in asyncio.as_completed(asking):
                    try:
                        return await self._read(*await answering)
                    except grpc.RpcError as refusal:
                        error = from_rpc_error(refusal)  # another one may do better
        except TimeoutError:
            pass
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            await asyncio.gather(*(channel.close() for channel in channels))
        raise error

    async def _read(self, stub: tokenizer_pb2_grpc.TokenizerServiceStub, info: tokenizer_pb2.GetInfoResponse) -> Vocabulary:
        bundle, sha256 = bytearray(), ""
        async for chunk in stub.GetBundle(tokenizer_pb2.GetBundleRequest()):
            bundle += chunk.data
            sha256 = chunk.sha256
        vocabulary = await asyncio.to_thread(_unpack, bytes(bundle), sha256, tuple(info.eos_token_ids), self._vocab_size)
        log.info("vocabulary.fetched", tokenizer=info.tokenizer_hash, bundle=sha256, size=vocabulary.tokens.vocab_size)
        return vocabulary


async def _ask(
    stub: tokenizer_pb2_grpc.TokenizerServiceStub,
) -> tuple[tokenizer_pb2_grpc.TokenizerServiceStub, tokenizer_pb2.GetInfoResponse]:
    return stub, await stub.GetInfo(tokenizer_pb2.GetInfoRequest(), wait_for_ready=True)


def _unpack(bundle: bytes, sha256: str, eos_token_ids: tuple[int, ...], vocab_size: int) -> Vocabulary:
    if hashlib.sha256(bundle).hexdigest() != sha256:
        raise InternalError("The tokenizer's bundle does not match its checksum.")
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        tokenizer_json = archive.read("tokenizer.json").decode()
    return Vocabulary(tokenizer_json, eos_token_ids, vocab_size)
