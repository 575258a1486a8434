"""Stack URL: the HTTP address of a local stack, as a file beside its sockets.

Written by the local stack, read by `tetrad status`. A directory without the file is the stack of a program, or one whose
directory somebody removed.
"""

import contextlib
from pathlib import Path
from urllib.parse import urlsplit

from tetrad.frontend.config import FrontendSettings

_FILE = "url"
_ANY_ADDRESS = ("0.0.0.0", "::", "")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def url_of(frontend: FrontendSettings) -> str:
    """Return the URL at which this machine reaches a frontend."""
    host = "127.0.0.1" if frontend.host in _ANY_ADDRESS else frontend.host
    scheme = "http" if frontend.public_tls is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{frontend.port}"


def write_url(directory: Path, url: str) -> None:
    """Keep the URL of a stack; a full disk costs the line in `tetrad status`, not the stack."""
    with contextlib.suppress(OSError):
        (directory / _FILE).write_text(url)


def read_url(directory: Path) -> str:
    """Return the URL of a stack; empty if it has none."""
    try:
        return (directory / _FILE).read_text()
    except OSError:
        return ""


def is_same_server(url: str, other: str) -> bool:
    """Return whether two URLs have the same port, and the same host or two names of this machine."""
    if not url or not other:
        return False
    one, two = urlsplit(url), urlsplit(other)
    hosts = {one.hostname, two.hostname}
    return one.port == two.port and (len(hosts) == 1 or hosts <= set(_LOOPBACK))
