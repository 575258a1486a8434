"""Services of a second model."""

import asyncio

import pytest

from tests.frontend import fakes
from tests.frontend.llm.second_model import OTHER


@pytest.fixture
async def second(sockets):
    """Tokenizer and engine core of another model, which no frontend knows at its start."""
    tokenizer = fakes.FakeTokenizer(sockets / "t2")
    engine = fakes.FakeEngine(sockets / "e2", reply=lambda _, position: OTHER.encode()[position % len(OTHER)], max_model_len=64)
    await asyncio.gather(tokenizer.start(), engine.start())
    yield tokenizer, engine
    await asyncio.gather(tokenizer.kill(), engine.kill())
