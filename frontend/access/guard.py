"""Guard: checks a caller's permissions. Used by HTTP and the public gRPC API; knows credentials and origins, no paths.

Users may generate and read the server's state: holders of an API key, or all callers if no keys are set. Operators may also
change the service for all users (pause, reset caches): holders of an operator key. Without operator keys, all callers are
operators if the server is bound to this machine only and has no API keys; a server that others can reach never offers them
`/pause`.
"""

from collections.abc import Iterable

from tetrad.frontend.access.api_keys import ApiKeys
from tetrad.frontend.config import FrontendSettings
from tetrad.services.errors import PermissionDenied, Unauthenticated
from tetrad.services.rpc.listening import is_local, is_loopback

_NO_KEY = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
    "(i.e. Authorization: Bearer YOUR_KEY)."
)
_HOW = "give the server an --operator-api-key and send it, or start it with --operator-endpoints on"


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
