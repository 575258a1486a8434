"""Assets: serves the files of the console page, read once at start. A name is never used as a path: unknown names are a 404.

Their content security policy allows the page only its own scripts and calls of its own server. It forbids inline scripts and
styles, other hosts, frames around the page, and the conversion of text to HTML (trusted types).
"""

from pathlib import Path

from tetrad.frontend.api.http.static_files.static_file import TYPES, StaticFile

_DIRECTORY = Path(__file__).parent / "static"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


def load_assets() -> dict[str, StaticFile]:
    """Return all files of the page by path, including those of other projects (vendor/)."""
    paths = sorted(path for path in _DIRECTORY.rglob("*") if path.suffix in TYPES)
    return {
        path.relative_to(_DIRECTORY).as_posix(): StaticFile.of(path, content_security_policy=CONTENT_SECURITY_POLICY)
        for path in paths
    }
