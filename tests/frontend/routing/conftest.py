"""Fixtures: names that stand for addresses, and fakes at these addresses."""

import socket

import pytest

from tests.frontend.routing.found_services import Names


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def names(monkeypatch):
    return Names(monkeypatch)


@pytest.fixture
async def start_fake(port):
    """`await start_fake(kind, number)` gives a fake at an address of its own, 127.0.0.(2 + number)."""
    fakes = []

    async def start(kind, number, **fields):
        fake = kind("", **fields)
        fake.address = f"127.0.0.{2 + number}"
        fake.target = f"{fake.address}:{port}"
        fakes.append(fake)
        await fake.start()
        return fake

    yield start
    for fake in fakes:
        await fake.kill()
