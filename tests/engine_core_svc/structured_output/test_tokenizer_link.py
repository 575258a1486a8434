"""The vocabulary is fetched from the tokenizer that answers first, however often tokenizers are lost meanwhile."""

import asyncio
import time

import grpc
import pytest

from tests.engine_core_svc.service_fakes import FakeTokenizer
from tetrad.engine_core_svc.structured_output import tokenizer_link
from tetrad.engine_core_svc.structured_output.tokenizer_link import TokenizerLink
from tetrad.services.errors import Unavailable
from tetrad.v1 import tokenizer_pb2_grpc


class LossyTokenizer(FakeTokenizer):
    """Ends its first calls of one method with an error, as a connection does."""

    def __init__(self, tokenizer_json: str, method: str, code: grpc.StatusCode) -> None:
        super().__init__(tokenizer_json)
        self.losses = {method: 2}
        self._code = code

    async def GetInfo(self, request, context):
        await self._maybe_lose("GetInfo", context)
        return await super().GetInfo(request, context)

    async def GetBundle(self, request, context):
        async for message in super().GetBundle(request, context):
            yield message
            await self._maybe_lose("GetBundle", context)

    async def _maybe_lose(self, method: str, context) -> None:
        if self.losses.get(method):
            self.losses[method] -= 1
            await context.abort(self._code, "lost")


@pytest.fixture
async def serve(make_socket):
    servers = []

    async def start(tokenizer: FakeTokenizer) -> str:
        address = make_socket(f"t{len(servers)}")
        servers.append(grpc.aio.server())
        tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(tokenizer, servers[-1])
        servers[-1].add_insecure_port(address)
        await servers[-1].start()
        return address

    yield start
    for server in servers:
        await server.stop(None)


def link_to(*targets: str, vocab_size: int = 9, timeout_s: float = 10.0) -> TokenizerLink:
    return TokenizerLink(targets, vocab_size, max_message_bytes=1 << 20, timeout_s=timeout_s)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED])
@pytest.mark.parametrize("method", ["GetInfo", "GetBundle"])
async def test_tokenizers_that_are_lost_are_asked_again(serve, tokenizer_json, vocabulary, method, code, monkeypatch):
    monkeypatch.setattr(tokenizer_link, "_RETRY_S", 0.02)
    lossy = [LossyTokenizer(tokenizer_json, method, code) for _ in range(2)]
    link = link_to(*[await serve(each) for each in lossy], vocab_size=vocabulary.vocab_size)

    assert (await link.vocabulary()).source == vocabulary.source
    assert any(each.losses[method] == 0 for each in lossy)


async def test_what_every_tokenizer_refuses_is_not_asked_again(serve, tokenizer_json):
    refusing = LossyTokenizer(tokenizer_json, "GetInfo", grpc.StatusCode.UNAUTHENTICATED)
    link = link_to(await serve(refusing))

    with pytest.raises(Exception, match="lost"):
        await link.vocabulary()
    assert refusing.losses == {"GetInfo": 1}


async def test_a_tokenizer_that_does_not_answer_costs_everyone_one_time_limit(tmp_path):
    """Not one after the other: the last of many requests would wait for minutes."""
    link = link_to(f"unix:{tmp_path}/nobody", timeout_s=0.2)

    started = time.monotonic()
    outcomes = await asyncio.gather(*(link.vocabulary() for _ in range(20)), return_exceptions=True)

    assert time.monotonic() - started < 2
    assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
    with pytest.raises(Unavailable, match=r"within 0\.2 s"):
        await link.vocabulary()
