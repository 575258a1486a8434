"""Stack URL: the HTTP address of a local stack, http://host:port or unix:/path, in a file beside its sockets.

Written by the local stack, read by `tetrad status`. A directory without the file belongs to a stack inside a program, or was
removed and created again.
"""

import contextlib
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from tetrad.frontend.config import FrontendSettings

UNIX = "unix:"
"""The beginning of the URL of a server on a Unix socket; its path follows."""
_FILE = "url"
_ANY_ADDRESS = ("0.0.0.0", "::", "")
_USUAL_PORTS = {"http": 80, "https": 443}
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def url_of(frontend: FrontendSettings) -> str:
    """Return the URL of a frontend for clients on this machine; unix:/path if it listens on a Unix socket."""
    if frontend.uds is not None:
        return f"{UNIX}{frontend.uds}"
    scheme = "http" if frontend.public_tls is None else "https"
    return f"{scheme}://{local_host(frontend)}:{frontend.port}"


def local_host(frontend: FrontendSettings) -> str:
    """Return the host at which clients on this machine reach the ports of a frontend, as a part of URLs."""
    host = "127.0.0.1" if frontend.host in _ANY_ADDRESS else frontend.host
    return f"[{host}]" if ":" in host else host


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
    """Return whether two URLs have the same port, and either the same host or two loopback names; or the same Unix socket."""
    if not url or not other:
        return False
    if url.startswith(UNIX) or other.startswith(UNIX):
        return url == other
    one, two = urlsplit(url), urlsplit(other)
    hosts = {one.hostname, two.hostname}
    return _port_of(one) == _port_of(two) and (len(hosts) == 1 or hosts <= set(_LOOPBACK))


def _port_of(url: SplitResult) -> int | None:
    """Return the port of a URL; None if it names an impossible one."""
    try:
        return url.port or _USUAL_PORTS.get(url.scheme)
    except ValueError:
        return None
