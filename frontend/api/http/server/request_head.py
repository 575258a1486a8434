"""Request heads: checks a request line and headers by rules of RFC 9112 that the parser does not check. Pure.

An ambiguous head is refused: a proxy and this server could read it differently (request smuggling).
"""

import re
from collections.abc import Sequence

_VERSIONS = ("1.0", "1.1")
# A host and a port in the syntax of RFC 3986; empty if the target has no authority.
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(:[0-9]*)?")
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]+")


class WrongHead(Exception):
    """The head of a request is invalid or not supported.

    Attributes:
        status: the status line of the answer, such as b"400 Bad Request".
        text: the reason.
    """

    def __init__(self, status: bytes, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def check_head(method: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Check the head of a request.

    Args:
        method: the method in the request line.
        version: the version of HTTP, such as 1.1.
        headers: names, in lower case, and values.

    Raises:
        WrongHead: the head is invalid; the error has the status that RFC 9110 defines.
    """
    if version not in _VERSIONS:
        raise unknown_version(version)
    if method == b"CONNECT":
        raise WrongHead(b"501 Not Implemented", "This server is no proxy: it does not take CONNECT requests.")
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (not hosts and version != "1.0"):
        raise WrongHead(b"400 Bad Request", f"A request must have one Host header, got {len(hosts)}.")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise WrongHead(b"400 Bad Request", f"Host must be a host name and a port, got {hosts[0][:80].decode('latin-1')!r}.")
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings and version == "1.0":
        raise WrongHead(b"400 Bad Request", "A request of HTTP/1.0 must have no Transfer-Encoding header.")
    if any(coding.lower() != b"chunked" for coding in codings):
        raise WrongHead(b"501 Not Implemented", "Transfer-Encoding must be chunked; this server knows no other.")


def unknown_version(version: str = "") -> WrongHead:
    """Return the error for a version that this server does not support."""
    got = f", got HTTP/{version}" if version else ""
    return WrongHead(b"505 HTTP Version Not Supported", f"This server speaks HTTP/1.1 and HTTP/1.0{got}.")


def with_path(target: bytes) -> bytes:
    """Return a request's target; a URL without a path gets the path /."""
    authority = _ABSOLUTE.match(target)
    if authority is None or target[authority.end() : authority.end() + 1] == b"/":
        return target
    return target[: authority.end()] + b"/" + target[authority.end() :]
