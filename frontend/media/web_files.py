"""Web files: fetches media by http: and https: URLs, by the operator's rules.

A host name is resolved once; the connection goes to an address that was checked, so that a second lookup cannot lead elsewhere.
Every redirect is checked like a client's URL. No cookies, credentials or proxies are used.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from urllib.parse import SplitResult, urljoin, urlsplit

from tetrad.frontend.media.addresses import Network, may_connect
from tetrad.frontend.media.http_response import BadResponse, HttpResponse, read_response
from tetrad.services.errors import InvalidRequest
from tetrad.services.log import get_logger
from tetrad.services.version import VERSION

log = get_logger()

_PORTS = {"http": 80, "https": 443}
_OK = 200
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_MAX_URL_CHARS = 8192


@dataclass(frozen=True, slots=True)
class WebRules:
    """The operator's rules.

    Attributes:
        domains: the hosts that may be named, in lower case; "*": all.
        networks: networks that are allowed although they are not public.
        max_redirects: maximum number of redirects of a URL.
        max_bytes: maximum size of a file.
    """

    domains: Sequence[str]
    networks: Sequence[Network]
    max_redirects: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class WebFile:
    """A fetched file, and its media type if the server says that it is an image, audio or video."""

    data: bytes
    media_type: str


async def fetch(url: str, where: str, rules: WebRules, threads: Executor) -> WebFile:
    """Return the file at a URL. The caller limits the time.

    Args:
        url: an http: or https: URL.
        where: the field of the request, for errors.
        rules: the operator's rules.
        threads: look up names.

    Raises:
        InvalidRequest: the rules forbid the URL, or the file cannot be fetched.
    """
    for _ in range(rules.max_redirects + 1):
        target = _checked(url, where, rules)
        response = await _get(target, where, rules, threads)
        if response.status not in _REDIRECTS:
            return _file(response, target, where)
        url = urljoin(target.geturl(), response.headers.get("location", ""))
    text = f"it redirects; at most {rules.max_redirects} redirects are followed (max_media_redirects)"
    raise _failed(target, where, text)


def _checked(url: str, where: str, rules: WebRules) -> SplitResult:
    """Return the parts of a URL that the rules allow."""
    parts = _split(url, where)
    host = _host(parts, where)
    if "*" not in rules.domains and host not in rules.domains:
        hint = "" if rules.domains else " Set `--allowed-media-domains` to allow some."
        text = (
            f"{where}: The URL must be from one of the allowed domains: {list(rules.domains)}. Input URL domain: {host}.{hint}"
        )
        raise InvalidRequest(text, field=where)
    return parts


def _split(url: str, where: str) -> SplitResult:
    if len(url) > _MAX_URL_CHARS:
        text = f"{where}: the URL has {len(url)} characters; at most {_MAX_URL_CHARS} are taken."
        raise InvalidRequest(text, field=where)
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        text = f"{where}: the URL must have printable ASCII characters only, without spaces and backslashes, got {url[:64]!r}."
        raise InvalidRequest(text, field=where)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidRequest(f"{where}: the URL {url[:64]!r} is wrong: {error}.", field=where) from None
    if parts.scheme not in _PORTS:
        raise InvalidRequest(f"{where}: The URL must be either a HTTP, data or file URL.", field=where)
    if parts.username is not None or parts.password is not None or port == 0:
        raise InvalidRequest(f"{where}: the URL must have no user, no password and no port 0.", field=where)
    return parts


def _host(parts: SplitResult, where: str) -> str:
    host = (parts.hostname or "").lower()
    if not host:
        raise InvalidRequest(f"{where}: the URL has no host.", field=where)
    return host


async def _get(target: SplitResult, where: str, rules: WebRules, threads: Executor) -> HttpResponse:
    host, port = _host(target, where), target.port or _PORTS[target.scheme]
    run = asyncio.get_running_loop().run_in_executor
    try:
        found = await run(threads, partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        raise _failed(target, where, "the host has no address") from None
    address = _allowed(host, [str(each[4][0]) for each in found], target, where, rules)
    context = None if target.scheme == "http" else await run(threads, _tls)
    try:
        reader, writer = await asyncio.open_connection(
            address, port, ssl=context, server_hostname=None if context is None else host
        )
    except (OSError, ssl.SSLError) as error:
        raise _failed(target, where, f"no connection ({_reason(error)})") from None
    try:
        writer.write(_request(target))
        response = await read_response(reader, rules.max_bytes)
    except BadResponse as error:
        raise _failed(target, where, str(error)) from None
    except (OSError, ssl.SSLError) as error:
        raise _failed(target, where, f"the connection was lost ({_reason(error)})") from None
    finally:
        # Not closed politely: nothing more is expected of the server, and it may not answer.
        with suppress(OSError):
            writer.transport.abort()
    log.debug("media.fetched", host=host, status=response.status, num_bytes=len(response.body))
    return response


def _allowed(host: str, addresses: Sequence[str], target: SplitResult, where: str, rules: WebRules) -> str:
    """Return the first address of a host that the server may connect to."""
    allowed = next((each for each in addresses if may_connect(each, rules.networks)), None)
    if allowed is None:
        # The addresses are not named: a client learns nothing about the operator's network.
        raise _failed(target, where, f"the host {host[:64]!r} has no public address")
    return allowed


def _request(target: SplitResult) -> bytes:
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    lines = (
        f"GET {path} HTTP/1.1",
        f"Host: {target.netloc}",
        f"User-Agent: tetrad/{VERSION}",
        "Accept: image/*, audio/*, video/*",
        "Accept-Encoding: identity",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode("ascii")


def _file(response: HttpResponse, target: SplitResult, where: str) -> WebFile:
    if response.status != _OK:
        raise _failed(target, where, f"the server answered with status {response.status}")
    if not response.body:
        raise _failed(target, where, "it is empty")
    media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    return WebFile(bytes(response.body), media_type if media_type.startswith(("image/", "audio/", "video/")) else "")


def _failed(target: SplitResult, where: str, reason: str) -> InvalidRequest:
    # Without the query, which may hold a signature.
    shown = f"{target.scheme}://{target.netloc}{target.path}"[:160]
    return InvalidRequest(f"{where}: Failed to fetch {shown}: {reason}.", field=where, reason="MEDIA_FETCH_FAILED")


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "TLS"
    # asyncio's own texts name the address.
    return os.strerror(error.errno) if error.errno else type(error).__name__


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
