"""The HTTP address of a local stack: its form, and equal URLs."""

import pytest

from tetrad.frontend.config import FrontendSettings
from tetrad.stack.stack_url import is_same_server, read_url, url_of, write_url


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8123"),
        ("0.0.0.0", "http://127.0.0.1:8123"),
        ("::", "http://127.0.0.1:8123"),
        ("::1", "http://[::1]:8123"),
        ("example.test", "http://example.test:8123"),
    ],
)
def test_an_address_is_one_that_a_client_of_this_machine_can_use(host, url):
    assert url_of(FrontendSettings(host=host, port=8123)) == url


def test_a_directory_keeps_the_url_of_its_stack(tmp_path):
    assert read_url(tmp_path) == ""

    write_url(tmp_path, "http://127.0.0.1:8123")

    assert read_url(tmp_path) == "http://127.0.0.1:8123"


def test_a_directory_that_is_gone_fails_nobody(tmp_path):
    write_url(tmp_path / "gone", "http://127.0.0.1:8123")

    assert read_url(tmp_path / "gone") == ""


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("http://127.0.0.1:8123", True),
        ("http://localhost:8123", True),
        ("http://[::1]:8123", True),
        ("http://127.0.0.1:8124", False),
        ("http://example.test:8123", False),
        ("http://127.0.0.1:abc", False),
        ("", False),
    ],
)
def test_a_server_is_known_by_its_port_on_this_machine(other, same):
    assert is_same_server("http://127.0.0.1:8123", other) is same


@pytest.mark.parametrize(
    ("url", "other"), [("http://127.0.0.1:80", "http://localhost"), ("https://127.0.0.1:443", "https://127.0.0.1/")]
)
def test_the_usual_port_of_a_scheme_may_be_left_out(url, other):
    assert is_same_server(url, other)


def test_a_server_on_a_unix_socket_is_known_by_its_path():
    url = url_of(FrontendSettings(uds="/run/a.sock", port=8123))

    assert url == "unix:/run/a.sock"
    assert is_same_server(url, "unix:/run/a.sock")
    assert not is_same_server(url, "unix:/run/b.sock")
    assert not is_same_server(url, "http://127.0.0.1:8123")
