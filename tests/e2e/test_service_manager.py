"""`tetrad serve` under a service manager: it reports its state to the socket that NOTIFY_SOCKET names."""

import signal
import socket

import pytest

TIMEOUT_S = 60


@pytest.fixture
def manager(socket_directory, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(socket_directory / "notify"))
        receiver.settimeout(TIMEOUT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(socket_directory / "notify"))
        yield receiver


def state(manager: socket.socket) -> str:
    return manager.recv(4096).decode().partition("\n")[0]


def test_the_manager_learns_of_ready_reload_and_end(start_server, manager):
    server = start_server("--device", "sim", "--tokenizer-pool-size", "1")

    began = state(manager)
    children = server.processes()[1:]
    inherited = [process for process in children if "NOTIFY_SOCKET" in process.environ()]
    server.process.send_signal(signal.SIGHUP)
    reloaded = [state(manager), state(manager)]
    server.process.send_signal(signal.SIGTERM)

    assert began == "READY=1"
    assert reloaded == ["RELOADING=1", "READY=1"]
    assert state(manager) == "STOPPING=1"
    assert children
    assert inherited == []
