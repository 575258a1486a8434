"""Fixtures of the library's tests."""

import pytest

from tests.tetrad.library.services_here import ServicesHere
from tetrad.library import async_llm, llm_arguments, llm_engine


@pytest.fixture
def services_here(monkeypatch):
    """Run the services of each LLM that the test makes in this process, and end those of an LLM that it did not close."""
    made = []

    def make(args):
        made.append(ServicesHere(args))
        return made[-1]

    for module in (async_llm, llm_arguments, llm_engine):
        monkeypatch.setattr(module, "LocalServices", make)
    yield
    for services in made:
        services.abandon()
    assert all(services.wait_ended(timeout_s=30) for services in made)
