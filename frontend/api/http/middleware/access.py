"""Access: refuses HTTP requests without an API key before reading their body. Plain ASGI; knows paths, not keys.

Only the paths of load balancers, dashboards and the documentation need no key. All other paths do, also unknown ones, and also
/tokenize and /detokenize, which need none in vLLM, because they cost CPU time like a prompt and reveal the chat template.
"""

from collections.abc import Iterator

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tetrad.frontend.access.guard import Guard, bearer_key
from tetrad.frontend.api.http.middleware.refusals import refusal
from tetrad.services.errors import Unauthenticated

OPEN_PATHS = frozenset(
    {"/", "/health", "/health/live", "/health/ready", "/ping", "/version", "/metrics", "/docs", "/openapi.json"}
)
CONSOLE_FILES = "/console/static/"
"""Prefix of the console's files, which need no key."""
DOCUMENTATION_FILES = "/docs/static/"
"""Prefix of the files of /docs, which need no key."""


class Access:
    """Refuses the requests that the guard refuses.

    Args:
        app: the application that answers requests.
        guard: checks keys.
    """

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and not _is_open(scope["path"]):
            try:
                self._guard.check_user(presented_keys(scope))
            except Unauthenticated as error:
                await refusal(scope, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith((CONSOLE_FILES, DOCUMENTATION_FILES))


async def require_operator(request: Request) -> None:
    """Route dependency: refuse callers without operator permissions."""
    guard: Guard = request.app.state.guard
    guard.check_operator(presented_keys(request.scope), origin=request.headers.get("origin"))


def presented_keys(scope: Scope) -> Iterator[str]:
    """Yield the keys of a request, from `Authorization: Bearer` (OpenAI's clients) and `x-api-key` (Anthropic's)."""
    for name, value in scope["headers"]:
        text = value.decode("latin-1")
        if name == b"authorization" and (key := bearer_key(text)) is not None:
            yield key
        elif name == b"x-api-key" and text:
            yield text
