"""Stack URL: the HTTP address of a local stack, in a file beside its sockets.

Written by the local stack, read by `tetrad status`. A directory without the file belongs to a stack inside a program, or was
removed and created again.
"""

import contextlib
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from tetrad.frontend.config import FrontendSettings

_FILE = "url"
_ANY_ADDRESS = ("0.0.0.0", "::", "")
_USUAL_PORTS = {"http": 80, "https": 443}
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def url_of(frontend: FrontendSettings) -> str:
    """Return the URL of a frontend for clients on this machine."""
    host = "127.0.0.1" if frontend.host in _ANY_ADDRESS else frontend.host
    scheme = "http" if frontend.public_tls is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{frontend.port}"


def write_url(directory: Path, url: str) -> None:
    """Write the URL of a stack. Errors such as a full disk are ignored: only the line in `tetrad status` is then missing."""
    with contextlib.suppress(OSError):
        (directory / _FILE).write_text(url)


def read_url(directory: Path) -> str:
    """Return the URL of a stack; empty if it has no such file."""
    try:
        return (directory / _FILE).read_text()
    except OSError:
        return ""


def is_same_server(url: str, other: str) -> bool:
    """Return whether two URLs have the same port, and either the same host or two loopback names."""
    if not url or not other:
        return False
    one, two = urlsplit(url), urlsplit(other)
    hosts = {one.hostname, two.hostname}
    return _port_of(one) == _port_of(two) and (len(hosts) == 1 or hosts <= set(_LOOPBACK))


def _port_of(url: SplitResult) -> int | None:
    """Return the port of a URL; None if it names an impossible one."""
    try:
        return url.port or _USUAL_PORTS.get(url.scheme)
    except ValueError:
        return None
