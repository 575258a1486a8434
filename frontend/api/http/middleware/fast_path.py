"""Fast path: calls routes without parameters directly, without FastAPI's routing and dependency resolution.

An endpoint whose only parameter is the request, on a path without parameters, does not need FastAPI's search of all routes, its
parameters or its dependencies, whose costs add up over simultaneous requests. FastAPI serves all other routes. The same
handlers answer errors and unexpected exceptions.
"""

import inspect
from collections.abc import Iterable

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send


class FastPath:
    """Answers requests of simple routes directly and passes all others to FastAPI.

    Args:
        app: the application with its exception handlers; it serves all other routes.
        routes: the routes of `app`; those whose only parameter is the request are called directly.
    """

    def __init__(self, app: FastAPI, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._routes = {
            (method, route.path): route
            for route in routes
            # No subclasses: these may handle requests in their own way.
            if type(route) is APIRoute and _takes_request_alone(route)
            for method in route.methods or ()
        }
        handlers = dict(app.exception_handlers)
        on_bug = handlers.pop(Exception, None)
        self._answering = ServerErrorMiddleware(ExceptionMiddleware(_answer, handlers), handler=on_bug)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        route = self._routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["app"], scope["route"] = self._app, route
        await self._answering(scope, receive, send)


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    response = await scope["route"].endpoint(Request(scope, receive, send))
    await response(scope, receive, send)


def _takes_request_alone(route: APIRoute) -> bool:
    parameters = inspect.signature(route.endpoint).parameters
    return list(parameters) == ["request"] and not route.dependencies and "{" not in route.path
