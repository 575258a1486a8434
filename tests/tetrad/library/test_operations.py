"""The facts that LLM, LLMEngine and AsyncLLM state about their model."""

from types import SimpleNamespace

import pytest

from tetrad.frontend.request.pooling import PoolingFacts
from tetrad.library.async_llm import AsyncLLM
from tetrad.library.operations import Operations

EMBEDDER = PoolingFacts(("embed", "token_embed"), 8, False, (), (), 0, True)
BOTH = PoolingFacts(("embed",), 8, False, (), (), 0, True, generates=True)


@pytest.mark.parametrize(
    ("pooling", "tasks"),
    [(None, ("generate",)), (EMBEDDER, ("embed", "token_embed")), (BOTH, ("generate", "embed"))],
)
async def test_the_supported_tasks_are_those_of_the_model(pooling, tasks):
    frontend = SimpleNamespace(pooling=pooling, transcribes=False)
    llm, async_llm = Operations(), AsyncLLM(SimpleNamespace())
    llm._running = SimpleNamespace(frontend=frontend)
    async_llm._frontend = frontend

    assert llm.get_supported_tasks() == await async_llm.get_supported_tasks() == tasks
