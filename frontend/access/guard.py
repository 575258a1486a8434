"""Guard: checks a caller's permissions. Used by HTTP and the public gRPC API; knows credentials and origins, no paths.

Users may generate and read the server's state: holders of an API key, or all callers if no keys are set. Operators may also
change the service for all users (pause, reset caches): holders of an operator key. Without operator keys, all callers are
operators if the server is bound to this machine only and has no API keys; a server that others can reach never offers them
`/pause`.

Keys are never logged, never part of an error, and compared in constant time. A changed key file is read again, so keys change
without a restart; if the file cannot be read, the old keys stay valid.
"""

import hmac
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from tetrad.frontend.config import FrontendSettings
from tetrad.services.errors import InvalidRequest, NotFound, PermissionDenied, Unauthenticated
from tetrad.services.log import get_logger
from tetrad.services.rpc.listening import is_local, is_loopback

_NO_KEY = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
    "(i.e. Authorization: Bearer YOUR_KEY)."
)
_HOW = "give the server an --operator-api-key and send it, or start it with --operator-endpoints on"


log = get_logger()

_Version = tuple[int, int, int]


class ApiKeys:
    """A set of keys.

    Args:
        keys: keys that are valid as long as the process runs.
        file: file of further keys, one per line; empty lines and lines that start with "#" are skipped.
        setting: name of the setting that `keys` come from, for messages.

    Raises:
        NotFound: the file cannot be read.
        InvalidRequest: a key is not printable ASCII without white space, or the file has no keys.
    """

    def __init__(self, keys: Iterable[str], file: Path | None = None, *, setting: str = "--api-key") -> None:
        # Only digests with a secret of this process are kept: they have equal lengths, and no key stays in memory.
        self._secret = secrets.token_bytes(32)
        self._fixed = self._digests(keys, setting)
        self._file = file
        self._from_file: list[bytes] = []
        self._version: _Version | None = None
        # The last logged version of an unreadable file; None: the file was missing; (): nothing was logged.
        self._said_not_read: _Version | tuple[()] | None = ()
        if file is not None:
            self._read_first(file)

    @property
    def required(self) -> bool:
        """Whether a key is required. An empty key file still requires one, so it refuses every caller."""
        return bool(self._fixed) or self._file is not None

    def accepts(self, presented: str) -> bool:
        """Return whether a key is valid. The time does not depend on where a wrong key differs."""
        self._read_again()
        digest = self._digest(presented)
        # All keys are compared, without an early end, so the time is constant.
        return sum(hmac.compare_digest(digest, known) for known in (*self._fixed, *self._from_file)) > 0

    def _read_first(self, file: Path) -> None:
        try:
            self._version = _version_of(file)
            self._from_file = self._digests(_lines(file), str(file))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise NotFound(f"The API key file {file} cannot be read: {reason}.", field="api_key_file") from error
        if not self._from_file:
            raise InvalidRequest(f"The API key file {file} has no keys; put one on each line.", field="api_key_file")

    def _read_again(self) -> None:
        if self._file is None:
            return
        version = None
        try:
            version = _version_of(self._file)
            if version == self._version:
                return
            # If it cannot be read, the next request tries again: a change of its owner or mode does not change its version.
            lines = _lines(self._file)
            self._version = version
            self._from_file = self._digests(lines, str(self._file))
        except (OSError, UnicodeDecodeError, InvalidRequest) as error:
            # Logged once, not for each request: a client with many requests must not fill the log.
            if self._said_not_read != version:
                self._said_not_read = version
                log.error("api_keys.file_not_read", file=str(self._file), reason=type(error).__name__)
            return
        self._said_not_read = ()
        log.info("api_keys.read_again", file=str(self._file), num_keys=len(self._from_file))

    def _digests(self, keys: Iterable[str], source: str) -> list[bytes]:
        digests = []
        for number, key in enumerate(keys, 1):
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                text = f"API key {number} of {source} must be printable ASCII characters without white space."
                raise InvalidRequest(text, field="api_key")
            digests.append(self._digest(key))
        return digests

    def _digest(self, key: str) -> bytes:
        return hmac.digest(self._secret, key.encode(errors="surrogateescape"), "sha256")


def _version_of(file: Path) -> _Version:
    found = os.stat(file)  # noqa: PTH116 - once a request: half the time of Path.stat
    return found.st_mtime_ns, found.st_size, found.st_ino


def _lines(file: Path) -> list[str]:
    lines = (line.strip() for line in file.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


class Guard:
    """Permits calls, or raises the reason for a refusal.

    Args:
        settings: the keys, and the setting of operator endpoints.

    Raises:
        NotFound, InvalidRequest: the keys cannot be used; see ApiKeys.
    """

    def __init__(self, settings: FrontendSettings) -> None:
        self._users = ApiKeys(settings.api_key, settings.api_key_file)
        self._operators = ApiKeys(settings.operator_api_key, setting="--operator-api-key")
        self._operator_endpoints = settings.operator_endpoints
        self._origins = frozenset(settings.allowed_origins)
        grpc_address = settings.grpc_address  # gateways' calls for operators are on this port
        is_http_local = settings.uds is not None or is_loopback(settings.host)
        self._only_this_machine = is_http_local and (grpc_address is None or is_local(grpc_address))

    @property
    def knows_users(self) -> bool:
        """Whether users need keys."""
        return self._users.required

    def check_user(self, presented: Iterable[str]) -> None:
        """Check that the caller is a user.

        Args:
            presented: all keys of the call.

        Raises:
            Unauthenticated: keys are required, and none of these is valid.
        """
        if not self._users.required:
            return
        keys = list(presented)
        if not keys:
            raise Unauthenticated(_NO_KEY, reason="INVALID_API_KEY")
        if not any(self._users.accepts(key) or self._operators.accepts(key) for key in keys):
            raise Unauthenticated("Incorrect API key provided.", reason="INVALID_API_KEY")

    def check_operator(self, presented: Iterable[str], *, origin: str | None) -> None:
        """Check that the caller is an operator.

        Args:
            presented: all keys of the call.
            origin: origin of the web page that makes the call; None: the caller is not a web page.

        Raises:
            Unauthenticated: an operator key is required, and the call has none.
            PermissionDenied: operator endpoints are off, or the caller's key or origin is not accepted.
        """
        if self._operator_endpoints == "off":
            raise PermissionDenied("Operator endpoints are switched off on this server (--operator-endpoints off).")
        if self._operator_endpoints == "on":
            return
        if self._operators.required:
            if not any(self._operators.accepts(key) for key in presented):
                raise Unauthenticated("This endpoint needs an operator key (--operator-api-key).", reason="INVALID_API_KEY")
            return
        if self._users.required or not self._only_this_machine:
            raise PermissionDenied(f"This endpoint is for operators, and not open to all who may reach this server: {_HOW}.")
        # Any web page can make its visitor's browser call a server on the visitor's machine.
        if origin is not None and origin not in self._origins:
            raise PermissionDenied(f"This endpoint is not open to web pages of {origin[:128]!r}: {_HOW}.")


def bearer_key(authorization: str) -> str | None:
    """Return the key in the value of an Authorization header; None if it has none."""
    scheme, _, key = authorization.strip().partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None
