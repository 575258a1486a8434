"""Batches of requests of the LLM class."""

from types import SimpleNamespace

from tetrad.library.batch import BatchRunner


async def test_a_pooling_batch_without_prompts_has_no_answers():
    """As a generating batch without prompts has no outputs."""
    batches = BatchRunner(SimpleNamespace())

    assert await batches.pool([], [], {}, on_finished=lambda: None) == []
    assert await batches.run([], on_finished=lambda output: None) == []
