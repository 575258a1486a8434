"""Query: refuses unknown query parameters, and a body, for routes that read query parameters only.

Used by the routes of operators, where an ignored parameter does harm: `/pause` without its `mode` ends all requests.
"""

from starlette.requests import Request

from tetrad.services.errors import InvalidRequest

_EMPTY_BODY_BYTES = 2
"""Size of `{}`, which some clients send in place of an empty body."""


async def query_alone(request: Request) -> None:
    """Route dependency: refuse query parameters that the route does not have, and a body."""
    path, known = request.url.path, [field.alias for field in request.scope["route"].dependant.query_params]
    has = f"it has {', '.join(known)}" if known else "it has none"
    for name in request.query_params:
        if name not in known:
            raise InvalidRequest(f"{path} has no query parameter {name[:64]!r}; {has}.", field=name[:64])
    size = request.headers.get("content-length", "0")
    if size.isdecimal() and int(size) > _EMPTY_BODY_BYTES:
        raise InvalidRequest(f"{path} takes query parameters and no body ({has}); the body has {size} bytes.")
