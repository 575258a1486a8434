"""Settings of the public ports: origins and methods as browsers send them, and files that are not given."""

import re

import pytest
from pydantic import ValidationError

from tetrad.frontend.config import FrontendSettings
from tetrad.services.settings import load_settings


@pytest.mark.parametrize("origin", ["https://a.example", "http://localhost:3000", "chrome-extension://abc", "*", "null"])
def test_origins_that_browsers_send(origin):
    assert FrontendSettings(allowed_origins=(origin,)).allowed_origins == (origin,)


def test_the_case_of_origins_and_methods_does_not_matter():
    settings = FrontendSettings(allowed_origins=("https://A.Example",), allowed_methods=("get", "Post"))

    assert settings.allowed_origins == ("https://a.example",)
    assert settings.allowed_methods == ("GET", "POST")


@pytest.mark.parametrize("origin", ["https://a.example/", "https://a.example/path", "a.example", "https://user@a", "https://"])
def test_an_origin_that_no_browser_sends_is_refused(origin):
    problem = re.escape(f"an origin is scheme://host or scheme://host:port, without a path, got '{origin}'")
    with pytest.raises(ValidationError, match=problem):
        FrontendSettings(allowed_origins=(origin,))


@pytest.mark.parametrize("name", ["API_KEY_FILE", "SSL_CERTFILE", "PEERS_DIR", "TLS_CERT_FILE", "TRACE_PATH"])
def test_an_empty_variable_names_no_file(name, monkeypatch):
    """Docker Compose passes an unset variable as an empty one."""
    monkeypatch.setenv(f"TETRAD_FRONTEND_{name}", "")

    assert getattr(load_settings(FrontendSettings, [], prog="t"), name.lower()) is None


@pytest.mark.parametrize("name", ["api_key", "operator_api_key"])
def test_an_empty_key_is_refused(name, monkeypatch):
    """Without a key the server would be open."""
    monkeypatch.setenv(f"TETRAD_FRONTEND_{name.upper()}", "")
    with pytest.raises(ValidationError, match="a key must not be empty"):
        FrontendSettings()
    with pytest.raises(ValidationError, match="a key must not be empty"):
        FrontendSettings(**{name: ("a", "")})


def test_http_and_grpc_need_two_ports(tmp_path):
    with pytest.raises(ValidationError, match="port and grpc-port are both 9000: choose two ports"):
        FrontendSettings(port=9000, grpc_port=9000)

    assert FrontendSettings(port=0, grpc_port=0).grpc_port == 0
    assert FrontendSettings(port=9000, grpc_port=9000, uds=tmp_path / "http.sock").grpc_port == 9000


def test_an_interval_of_streams_is_an_integer_of_32_bits():
    assert FrontendSettings(stream_interval=2**31 - 1).stream_interval == 2**31 - 1
    with pytest.raises(ValidationError, match="less than or equal to 2147483647"):
        FrontendSettings(stream_interval=2**31)
