"""The public ports of a stack belong to one server, from its start on, and are free again at its end."""

import socket

import pytest

from tetrad.frontend.api.http.server.listener import tune
from tetrad.services.errors import Unavailable
from tetrad.stack.public_ports import PublicPorts

HOST = "127.0.0.1"


def test_a_second_server_gets_neither_port_while_the_first_one_starts():
    """No socket listens yet: the first server still loads its model."""
    ports = PublicPorts(HOST, 0, 0)

    for port, grpc_port in ((ports.port, None), (0, ports.grpc_port)):
        with pytest.raises(Unavailable, match="Address already in use"):
            PublicPorts(HOST, port, grpc_port)

    ports.close()


def test_connections_of_a_server_that_has_ended_do_not_block_its_port():
    ports = PublicPorts(HOST, 0, None)
    with socket.socket(fileno=ports.http_fd) as listener:
        tune(listener, slow_client_timeout_s=1.0)
        listener.listen()
        client = socket.create_connection((HOST, ports.port))
        accepted, _ = listener.accept()
        accepted.close()  # the side that closes first waits for late packets for a minute
        client.close()
        listener.detach()
    ports.close()

    again = PublicPorts(HOST, ports.port, None)

    assert again.port == ports.port
    again.close()
