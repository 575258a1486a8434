"""Package index: downloads a wheel in environments without pip, such as those made by uv.

Called by model_files.py. Implements the simple repository API (PEP 503 and 691) with only the standard library, over https and
file URLs. Reads the index from the settings of pip and uv: variables, pip's configuration files, folders of wheels. It checks
the index's SHA-256; the caller verifies the content. Blocks.
"""

import configparser
import hashlib
import http.client
import json
import re
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from tetrad.services.errors import NotFound

_DEFAULT_INDEX = "https://pypi.org/simple"
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_TIMEOUT_S = 60.0
_CHUNK_BYTES = 1 << 20
_MAX_PAGE_BYTES = 32 << 20

OnProgress = Callable[[int, int], None]
"""Takes the number of bytes received and the total number; 0: unknown."""


@dataclass(frozen=True)
class IndexSettings:
    """The sources of packages.

    Args:
        indexes: URLs of simple indexes, in order of preference.
        folders: directories of wheels.
        certificates: PEM file of trusted authorities. None: those of the system.
    """

    indexes: tuple[str, ...]
    folders: tuple[Path, ...] = ()
    certificates: str | None = None


def index_settings(environment: Mapping[str, str]) -> IndexSettings:
    """Return the indexes from the variables of pip and uv, else from pip's configuration files, else the public index."""
    config = _pip_config(environment)

    def value(*names: str, option: str) -> str:
        return next((environment[name] for name in names if environment.get(name)), "") or config.get(option, "")

    no_index = value("PIP_NO_INDEX", "UV_NO_INDEX", option="no-index").lower() in ("1", "true", "yes", "on")
    main = value("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", option="index-url") or _DEFAULT_INDEX
    more = value("PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", option="extra-index-url").split()
    folders = value("PIP_FIND_LINKS", "UV_FIND_LINKS", option="find-links").split()
    return IndexSettings(
        indexes=() if no_index else (main.split()[0], *more),
        folders=tuple(Path(folder.removeprefix("file://")).expanduser() for folder in folders if "://" not in folder[5:]),
        certificates=value("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", option="cert") or None,
    )


def download_wheel(
    package: str, version: str, directory: Path, settings: IndexSettings, on_progress: OnProgress | None = None
) -> Path:
    """Write the wheel of a package into a directory and return its path. Raises NotFound, in one line, if no index has it."""
    stem = f"{re.sub(r'[-_.]+', '_', package).lower()}-{version}-"
    for folder in settings.folders:
        for wheel in sorted(folder.glob("*.whl")):
            if wheel.name.lower().startswith(stem):
                return wheel
    problems = [f"no {stem}*.whl in {folder}" for folder in settings.folders]
    for index in settings.indexes:
        try:
            return _download(index, package, stem, directory, settings, on_progress)
        except (OSError, ValueError, LookupError, http.client.HTTPException) as error:
            problems.append(f"{_without_secrets(index)}: {_reason(error)}")
    raise NotFound(
        f"{package}=={version} could not be fetched ({'; '.join(problems) or 'there is no index'}). Check the network and the"
        " index (PIP_INDEX_URL, UV_INDEX_URL or pip's configuration), or give the path of a model.",
        field="model",
    )


def _download(
    index: str, package: str, stem: str, directory: Path, settings: IndexSettings, on_progress: OnProgress | None
) -> Path:
    base = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', package).lower()}/"
    page_url, kind, page = _get_page(base, settings)
    links = _json_links(page) if "json" in kind else _html_links(page)
    for href in links:
        url = urllib.parse.urljoin(page_url, href)
        parts = urllib.parse.urlsplit(url)
        name = urllib.parse.unquote(parts.path).rpartition("/")[2]
        if name.lower().startswith(stem) and name.endswith(".whl"):
            if "@" not in parts.netloc and parts.hostname == urllib.parse.urlsplit(base).hostname:
                url = parts._replace(netloc=urllib.parse.urlsplit(base).netloc).geturl()  # same server, same credentials
            target = directory / name
            digest = _save(url, target, settings, on_progress)
            wanted = urllib.parse.parse_qs(parts.fragment).get("sha256", [digest])[0]
            if digest != wanted:
                raise ValueError(f"{name} has SHA-256 {digest}, and the index says {wanted}")
            return target
    raise LookupError(f"it has no {stem}*.whl")


def _get_page(base: str, settings: IndexSettings) -> tuple[str, str, str]:
    """Return a project page's final URL, its content type and its text."""
    if base.startswith("file:"):
        base += "index.html"
    with _open(base, settings) as response:
        page = response.read(_MAX_PAGE_BYTES + 1)
        if len(page) > _MAX_PAGE_BYTES:
            raise ValueError(f"the page has more than {_MAX_PAGE_BYTES} bytes")
        return response.geturl(), response.headers.get("Content-Type", ""), page.decode(errors="replace")


def _save(url: str, target: Path, settings: IndexSettings, on_progress: OnProgress | None) -> str:
    """Write the content of a URL to a file; return its SHA-256."""
    digest, arrived = hashlib.sha256(), 0
    with _open(url, settings) as response, target.open("wb") as sink:
        total = int(response.headers.get("Content-Length") or 0)
        while chunk := response.read(_CHUNK_BYTES):
            sink.write(chunk)
            digest.update(chunk)
            arrived += len(chunk)
            if on_progress is not None:
                on_progress(arrived, total)
    if total and arrived != total:
        raise OSError(f"{target.name} ended after {arrived} of {total} bytes")
    return digest.hexdigest()


def _open(url: str, settings: IndexSettings) -> "urllib.response.addinfourl":
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("https", "http", "file"):
        raise ValueError(f"{parts.scheme or 'no scheme'} is not supported; use https, http or file")
    netloc = parts.netloc.rpartition("@")[2]
    request = urllib.request.Request(parts._replace(netloc=netloc, fragment="").geturl(), headers={"Accept": _ACCEPT})
    if parts.username is not None:
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        request.add_unredirected_header("Authorization", f"Basic {b64encode(pair.encode()).decode()}")
    trust = ssl.create_default_context(cafile=settings.certificates)
    response: urllib.response.addinfourl = urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=trust)
    return response


def _json_links(page: str) -> Iterator[str]:
    for file in json.loads(page).get("files", ()):
        digest = file.get("hashes", {}).get("sha256")
        yield f"{file['url']}#sha256={digest}" if digest else str(file["url"])


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href:
            self.found.append(href)


def _html_links(page: str) -> list[str]:
    parser = _Links()
    parser.feed(page)
    return parser.found


def _pip_config(environment: Mapping[str, str]) -> dict[str, str]:
    """Return pip's options for downloads: later files override earlier ones, and [download] overrides [global]."""
    files = [Path("/etc/pip.conf"), Path.home() / ".pip" / "pip.conf", Path.home() / ".config" / "pip" / "pip.conf"]
    files += [Path(sys.prefix) / "pip.conf"]
    if environment.get("PIP_CONFIG_FILE"):
        files += [Path(environment["PIP_CONFIG_FILE"])]
    options: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, "utf-8")
        except (configparser.Error, OSError, ValueError):
            continue
        for section in ("global", "download"):
            if parser.has_section(section):
                options |= parser.items(section)
    return options


def _without_secrets(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error)
