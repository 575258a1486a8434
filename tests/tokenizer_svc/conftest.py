"""The real tokenizer, transformers' reading of the same file, and the service on a Unix socket."""

import contextlib
import random
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tetrad.services.request_context import current_context
from tetrad.services.rpc.channel import open_channel
from tetrad.services.rpc.server import Server
from tetrad.tokenizer_svc.api.servicer import TokenizerServicer
from tetrad.tokenizer_svc.chat.renderer import ChatLimits, ChatRenderer
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.tokenizer_svc.loading.load import load_tokenizer
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer
from tetrad.v1 import tokenizer_pb2_grpc

_FRAGMENTS = (
    *("The", " quick", "brown ", "don't", " we'll", "I'M", "naïve", "Straße", "\u00a0", "e\u0301", "ﬁ"),
    *("0", "7", "42", " 12345", "3.14", "2024-01-01", "1e-9", "0xFF", "½", "²", "٣"),
    *("def f(x):\n    return x ** 2\n", "if (a && b) { c(); }", "</div>", "#include <stdio.h>", "a_b__c", "\\n", "://"),
    *("你好", "世界。", "こんにちは", "カタカナ", "한국어", "我们", "，", "ไทย", "हिन्दी", "العربية"),
    *("😀", "👩‍👩‍👧", "🇫🇷", "👍🏽", "🤖"),
    *(" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u3000"),
    *("!", "...", "??", "—", "“x”", "(", ")", "$", "@", "\x00", "\x7f"),
)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """1,000 texts of words, numbers, code, CJK, emoji and white space, always the same."""
    dice = random.Random(7)
    return ["".join(dice.choices(_FRAGMENTS, k=dice.randint(1, 40))) for _ in range(1000)]


@pytest.fixture(scope="session")
def tokenizer(smollm2: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2))


@pytest.fixture(scope="session")
def reference(smollm2: Path) -> Any:
    """transformers' own conversion of the file; it needs torch, which the service does not."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    return transformers.AutoTokenizer.from_pretrained(str(smollm2.parent), gguf_file=smollm2.name)


Serve = Callable[..., AbstractAsyncContextManager[tokenizer_pb2_grpc.TokenizerServiceStub]]


@pytest.fixture
def serve(tokenizer: Tokenizer, tmp_path: Path) -> Serve:
    """Serves a tokenizer (SmolLM2's unless given) with these settings; gives a stub."""

    @contextlib.asynccontextmanager
    async def run(served: Tokenizer = tokenizer, **fields: Any) -> AsyncIterator[tokenizer_pb2_grpc.TokenizerServiceStub]:
        settings = TokenizerSettings(listen=f"unix:{tmp_path}/tokenizer", **fields)
        limits = ChatLimits(settings.chat_template_timeout_s, settings.chat_template_memory_bytes, settings.max_text_bytes)
        chat = ChatRenderer(served.facts, limits)
        with ThreadPoolExecutor(settings.threads) as pool:
            servicer = TokenizerServicer(
                served,
                chat,
                pool,
                model="smollm2",
                max_text_bytes=settings.max_text_bytes,
                max_pending_text_bytes=settings.max_pending_text_bytes,
                max_message_bytes=settings.max_message_bytes,
            )
            register = partial(tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server, servicer)
            server = Server(settings, {"tetrad.v1.TokenizerService": register})
            await server.start()
            channel = open_channel(server.address)
            try:
                yield tokenizer_pb2_grpc.TokenizerServiceStub(channel)
            finally:
                await channel.close()
                await server.stop()
                await chat.close()
                servicer.close()

    return run


class HeldTokenizer(Tokenizer):
    """Encodes when it is told to, or at once what is shorter than `hold_from_chars`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer.facts)
        self.began, self.go_on = threading.Event(), threading.Event()
        self.request_ids: list[str] = []
        self.hold_from_chars = 0

    def encode(self, text: str, **options: Any) -> list[int]:
        self.request_ids.append(current_context().request_id)
        if len(text) < self.hold_from_chars:
            return super().encode(text, **options)
        self.began.set()
        assert self.go_on.wait(10)
        return super().encode(text, **options)


@pytest.fixture
def held(tokenizer: Tokenizer) -> HeldTokenizer:
    return HeldTokenizer(tokenizer)
