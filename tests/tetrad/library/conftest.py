"""Fixtures of the library's tests."""

import pytest

from tests.tetrad.library.services_here import ServicesHere
from tetrad.library import async_llm, llm_arguments, llm_engine


@pytest.fixture
def services_here(monkeypatch):
    """Run the services of each LLM that the test makes in this process."""
    for module in (async_llm, llm_arguments, llm_engine):
        monkeypatch.setattr(module, "LocalServices", ServicesHere)
