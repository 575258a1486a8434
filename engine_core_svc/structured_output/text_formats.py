"""Text formats: replaces values of `format` that llguidance does not know by equal keywords, where they have any.

Pydantic, OpenAPI and Zod write them. Zod has many of its own, each with a pattern that says what it means; for JSON Schema a
format is a note, so the pattern alone decides.
"""

from typing import Any

# llguidance holds texts to these.
_KNOWN = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
# Any text has these: they tell a program how to show it, or what it names.
_FREE = frozenset({"password", "binary", "path", "file-path", "directory-path"})
_BASE64 = "^([{0}]{{4}})*([{0}]{{2}}==|[{0}]{{3}}=)?$"
_UUID = "^[0-9a-f]{{8}}-[0-9a-f]{{4}}-{0}[0-9a-f]{{3}}-[89ab][0-9a-f]{{3}}-[0-9a-f]{{12}}$"
_PATTERNS = {
    "base64": _BASE64.format("A-Za-z0-9+/"),
    "base64url": _BASE64.format("A-Za-z0-9_-"),
    # RFC 7519: parts in base64url, of which the first is the header, a JSON object; an unsigned token has no third part.
    "jwt": r"^eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*$",
    "byte": _BASE64.format("A-Za-z0-9+/"),
    **{f"uuid{version}": _UUID.format(version) for version in range(1, 9)},
}
_ALTERNATIVES = {"ipvanyaddress": ("ipv4", "ipv6")}


def with_known_format(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without an unknown format, if it has an equal form; else the schema unchanged."""
    name = schema.get("format")
    if not isinstance(name, str):
        return schema
    rest = {key: value for key, value in schema.items() if key != "format"}
    if name in _FREE or (name not in _KNOWN and isinstance(schema.get("pattern"), str)):
        return rest
    if name in _PATTERNS and "pattern" not in schema:
        return {**rest, "pattern": _PATTERNS[name]}
    if name in _ALTERNATIVES and "anyOf" not in schema:
        return {**rest, "anyOf": [{"type": "string", "format": each} for each in _ALTERNATIVES[name]]}
    return schema
