"""Assets: serves the files of the console page, read once at start. A name never becomes a path: unknown names are a 404.

Their content security policy lets the page run its own scripts and call its own server only. It forbids inline scripts and
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
    """Return every file of the page, those of other projects (vendor/) included, by its path."""
    paths = sorted(path for path in _DIRECTORY.rglob("*") if path.suffix in TYPES)
    return {
        path.relative_to(_DIRECTORY).as_posix(): StaticFile.of(path, content_security_policy=CONTENT_SECURITY_POLICY)
        for path in paths
    }
