"""Fixtures: a second tokenizer."""

import pytest

from tests.frontend.fakes import FakeTokenizer


@pytest.fixture
async def second(sockets):
    fake = FakeTokenizer(sockets / "t2")
    await fake.start()
    yield fake
    await fake.kill()
