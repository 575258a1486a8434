"""Local files: reads media that clients name by file: URLs, under the directory that the operator allows."""

import os
import stat
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from tetrad.frontend.media.base64_text import check_size
from tetrad.services.errors import InvalidRequest

_MAX_URL_CHARS = 8192


def read_local_file(url: str, where: str, *, allowed: Path | None, most: int, what: str = "image") -> bytes:
    """Return the file of a file: URL. Blocking.

    Args:
        url: the URL.
        where: the field of the request, for errors.
        allowed: the directory; None: no file may be read.
        most: maximum size of the file in bytes.
        what: the modality, for errors.

    Raises:
        InvalidRequest: the URL is wrong, or the file is not allowed, is no regular file, is too large, or cannot be read.
    """
    if allowed is None:
        raise InvalidRequest(f"{where}: Cannot load local files without `--allowed-local-media-path`.", field=where)
    parts = _split(url, where)
    if parts.netloc not in ("", "localhost"):
        text = f"{where}: a file: URL has no host, or localhost, got {parts.netloc[:64]!r}."
        raise InvalidRequest(text, field=where)
    name = unquote(parts.path)
    try:
        return _read(Path(name), allowed.resolve(), where, most, what)
    except InvalidRequest:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a zero byte; RuntimeError: a loop of symbolic links
        reason = error.strerror if isinstance(error, OSError) else "it is no path"
        raise InvalidRequest(f"{where}: Failed to load {what}: {name[:128]!r}: {reason}.", field=where) from None


def _split(url: str, where: str) -> SplitResult:
    if len(url) > _MAX_URL_CHARS:  # urlsplit keeps the URLs that it has read
        text = f"{where}: the URL has {len(url)} characters; at most {_MAX_URL_CHARS} are taken."
        raise InvalidRequest(text, field=where)
    try:
        return urlsplit(url)
    except ValueError as error:
        raise InvalidRequest(f"{where}: the URL {url[:64]!r} is wrong: {error}.", field=where) from None


def _read(path: Path, allowed: Path, where: str, most: int, what: str) -> bytes:
    found = path.resolve()
    if not found.is_relative_to(allowed):
        text = f"{where}: The file path {str(path)[:128]!r} must be a subpath of `--allowed-local-media-path`."
        raise InvalidRequest(text, field=where)
    # The path has no symbolic links left; O_NOFOLLOW refuses one that replaced the file. Opening a pipe must not wait.
    descriptor = os.open(found, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # A directory of the path may have been replaced by a link, too: the open file says where it is.
        place = Path(f"/proc/self/fd/{descriptor}")
        if place.exists() and not place.resolve().is_relative_to(allowed):
            raise InvalidRequest(f"{where}: The file was moved while it was opened.", field=where)
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise InvalidRequest(f"{where}: Failed to load {what}: {str(path)[:128]!r} is no regular file.", field=where)
        check_size(state.st_size, where, most, what)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(most + 1)
    finally:
        os.close(descriptor)
    check_size(len(data), where, most, what)
    return data
