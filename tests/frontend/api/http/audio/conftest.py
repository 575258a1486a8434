"""A frontend of a model that turns speech into text."""

import pytest

from tests.frontend.fakes.speech import AUDIO, TASKS


@pytest.fixture
async def hearing(tokenizer, engine, serve_frontend):
    """A frontend of a model that transcribes and translates."""
    tokenizer.modalities = engine.modalities = AUDIO
    tokenizer.speech.tasks, engine.transcribes = TASKS, True
    async with serve_frontend(listen="127.0.0.1:0") as running:
        yield running
