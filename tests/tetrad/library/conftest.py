"""Fixtures of the library's tests."""

import pytest

from tests.one_process_llm import services_in_process


@pytest.fixture
def services_here():
    """Run the services of each LLM that the test makes in this process."""
    with services_in_process():
        yield
