"""The engine cores of these tests pool."""

import pytest

from tests.frontend.fakes.pooling_engine import PoolingEngine


@pytest.fixture
def make_engine():
    return PoolingEngine
