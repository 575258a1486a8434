"""The page /docs: Swagger UI over /openapi.json, from the files of the package fastapi-offline, without any other host.

Its content security policy allows only those files and calls of its own server. Swagger UI writes styles into the page, so
inline styles are allowed; inline scripts are not.
"""

import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tetrad.frontend.api.http.middleware.access import DOCUMENTATION_FILES
from tetrad.frontend.api.http.static_files.static_file import StaticFile
from tetrad.services.errors import Unsupported

_PACKAGE = "fastapi_offline"
_LIBRARY = ("swagger-ui-bundle.js", "swagger-ui.css")
_DIRECTORY = Path(__file__).parent / "static"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def add_documentation(app: FastAPI) -> None:
    """Add the page and its files to `app`. If the package is not installed, the page says this."""
    library = _library()
    files = _load_files(library)

    async def page(request: Request) -> Response:
        if library is None:
            text = f"/docs needs the package {_PACKAGE.replace('_', '-')}; /openapi.json has the same for programs."
            raise Unsupported(text, reason="MISSING_PACKAGES")
        return files["docs.html"].response(request)

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return found.response(request)

    app.add_route("/docs", page, include_in_schema=False)
    app.add_route(f"{DOCUMENTATION_FILES}{{name:path}}", file, include_in_schema=False)


@functools.cache
def _load_files(library: Path | None) -> Mapping[str, StaticFile]:
    """Return the page and its files by name. They are read once a process."""
    own = sorted(path for path in _DIRECTORY.iterdir() if path.suffix in (".html", ".js", ".css"))
    paths = [*own, *(() if library is None else (library / name for name in _LIBRARY))]
    return {path.name: StaticFile.of(path, content_security_policy=_POLICY) for path in paths}


def _library() -> Path | None:
    """Return the directory of the package's files; None: the package is not installed."""
    found = importlib.util.find_spec(_PACKAGE)
    return None if found is None or found.origin is None else Path(found.origin).parent / "static"
