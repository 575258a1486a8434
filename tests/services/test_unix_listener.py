"""UnixListener: a socket at a path of the user: a stale one is replaced, a live one refused, its own removed."""

import socket

import pytest

from tetrad.services.errors import Unavailable
from tetrad.services.unix_listener import UnixListener


@pytest.fixture
def path(tmp_path):
    return tmp_path / "http.sock"


def connects(path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def test_connections_wait_from_the_start_and_the_path_is_removed_at_the_end(path):
    listener = UnixListener(path)

    assert connects(path)

    listener.close()
    listener.close()
    assert not path.exists()


def test_the_socket_of_a_process_that_ended_is_replaced(path):
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(path))

    listener = UnixListener(path)

    assert connects(path)
    listener.close()


def test_a_socket_on_which_a_server_listens_is_refused_and_stays(path):
    first = UnixListener(path)

    with pytest.raises(Unavailable, match=f"^Cannot listen on unix:{path}: another server listens there. .*--uds.$"):
        UnixListener(path)

    assert connects(path)
    first.close()


def test_a_file_that_is_no_socket_is_refused_and_stays(path):
    path.write_text("mine")

    with pytest.raises(Unavailable, match="the file exists and is not a socket"):
        UnixListener(path)

    assert path.read_text() == "mine"


def test_a_directory_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(Unavailable, match="No such file or directory"):
        UnixListener(tmp_path / "none" / "http.sock")


def test_the_socket_of_a_successor_is_not_removed(path):
    first = UnixListener(path)
    path.unlink()
    second = UnixListener(path)

    first.close()

    assert connects(path)
    second.close()
