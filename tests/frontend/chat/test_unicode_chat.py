"""A chat in many scripts through the real tokenizer: no stream ever contains half a character."""

import contextlib
import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.frontend.fakes import FakeEngine
from tetrad.services.rpc.server import Server
from tetrad.tokenizer_svc.api.servicer import TokenizerServicer
from tetrad.tokenizer_svc.chat.renderer import ChatLimits, ChatRenderer
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.tokenizer_svc.loading.load import load_tokenizer
from tetrad.v1 import tokenizer_pb2_grpc

WORDS = ["Hello", "naïve", "你好", "世界。", "こんにちは", "한국어", "שלום", "עולם", "مرحبا", "بالعالم"]
WORDS += ["हिन्दी", "ไทย", "😀", "👍🏽", "🇫🇷", "👩‍👩‍👧", "e\u0301", "\u200fRTL\u200e", "½", "𝒳"]
NUM_LINES = 300
BROKEN = "\ufffd"


class PresetEngine(FakeEngine):
    """A fake engine that generates a given text, with the vocabulary of the real tokenizer."""

    def _info(self):
        info = super()._info()
        info.vocab_size = 49152
        return info


@pytest.fixture
async def real_tokenizer(smollm2, sockets):
    loaded = load_tokenizer(str(smollm2))
    settings = TokenizerSettings(listen=f"unix:{sockets}/real")
    chat = ChatRenderer(loaded.facts, ChatLimits())
    with ThreadPoolExecutor(1) as pool:
        servicer = TokenizerServicer(loaded, chat, pool, model="smollm2", max_text_bytes=settings.max_text_bytes)

        def register(server):
            tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(servicer, server)

        server = Server(settings, {"tetrad.v1.TokenizerService": register})
        await server.start()
        yield loaded, server.address
        await server.stop()
        await chat.close()


@pytest.fixture
async def preset_engine(sockets):
    engine = PresetEngine(sockets / "preset", max_model_len=60_000)
    await engine.start()
    yield engine
    await engine.kill()


def lines(seed):
    dice = random.Random(seed)
    return "\n".join(" ".join(dice.choices(WORDS, k=dice.randint(1, 4))) for _ in range(NUM_LINES))


@pytest.mark.parametrize(("tokens_per_step", "logprobs"), [(2, False), (7, True)])
async def test_no_half_character_is_ever_shown(real_tokenizer, preset_engine, serve_frontend, tokens_per_step, logprobs):
    loaded, target = real_tokenizer
    # One broken character is the model's own: that one is shown.
    text = f"{BROKEN} {lines(tokens_per_step)}"
    ids = loaded.facts.rust.encode(text, add_special_tokens=False).ids
    preset_engine.reply = lambda _, position: ids[position]
    preset_engine.tokens_per_step = tokens_per_step
    turns = [("user", lines(1)), ("assistant", lines(2)), ("user", "😀")]
    messages = [{"role": role, "content": content} for role, content in turns]
    body = {"messages": messages, "stream": True, "ignore_eos": True, "max_tokens": len(ids), "logprobs": logprobs}

    shown, named = [], []
    settings = {"tokenizer_targets": (target,), "engine_targets": (preset_engine.target,)}
    async with contextlib.AsyncExitStack() as stack:
        frontend = await stack.enter_async_context(serve_frontend(**settings))
        response = await stack.enter_async_context(frontend.http.stream("POST", "/v1/chat/completions", json=body))
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                [choice] = json.loads(line.removeprefix("data: "))["choices"]
                shown.append(choice["delta"].get("content", ""))
                named += choice["logprobs"]["content"] if choice["logprobs"] else []

    assert "".join(shown) == text
    assert sum(delta.count(BROKEN) for delta in shown) == 1
    assert len(shown) > len(ids) / tokens_per_step / 4
    assert len(named) == (len(ids) if logprobs else 0)
    assert b"".join(bytes(each["bytes"]) for each in named) == (text.encode() if logprobs else b"")
