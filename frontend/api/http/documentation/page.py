"""The page /docs: the OpenAPI document as one HTML page, without scripts and without a request to any other host.

Knows JSON schemas as routes.py writes them: complete in themselves, without references.
"""

from collections.abc import Iterator
from html import escape
from json import dumps
from typing import Any

Schema = dict[str, Any]

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8886; text-transform: capitalize; }
details { margin: .6rem 0; border: 1px solid #8886; border-radius: 6px; padding: .4rem .8rem; }
summary { cursor: pointer; } summary code { font-size: 1.05em; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; }
td, th { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0; border-top: 1px solid #8883; }
td:first-child { white-space: nowrap; } pre { overflow-x: auto; background: #8882; padding: .6rem; border-radius: 4px; }
b { font-family: monospace; display: inline-block; min-width: 4em; }
"""


def docs_page(api: Schema) -> str:
    """Return the page of an OpenAPI document."""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(api['info']['title'])} API</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
        f"<h1>{escape(api['info']['title'])} {escape(api['info']['version'])}</h1>"
        f"{_paragraphs(api['info'].get('description', ''))}"
        "<p>The same for programs: <a href=openapi.json>openapi.json</a>.</p>"
        + "".join(_group(api, tag) for tag in api.get("tags", ()))
    )


def _group(api: Schema, tag: Schema) -> str:
    found = [
        _operation(path, method, operation)
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
        if tag["name"] in operation.get("tags", ())
    ]
    return f"<h2>{escape(tag['name'])}</h2>{_paragraphs(tag['description'])}{''.join(found)}"


def _operation(path: str, method: str, operation: Schema) -> str:
    description = operation.get("description", "")
    title = f"<b>{method.upper()}</b> <code>{escape(path)}</code> {escape(description.partition('.')[0])}"
    parts = [f"<details><summary>{title}</summary>", _paragraphs(description)]
    parameters = operation.get("parameters", ())
    if parameters:
        rows = "".join(_row(each["name"], each["schema"] | each, required=each.get("required", False)) for each in parameters)
        parts.append(f"<h4>Parameters</h4>{_table(rows)}")
    bodies = operation.get("requestBody", {}).get("content", {}).values()
    parts += [f"<h4>Body</h4>{_fields(content['schema'])}" for content in bodies]
    for status, response in operation["responses"].items():
        parts.append(f"<h4>{status}: {escape(response['description'])}</h4>")
        # Errors are all alike: the page's head has their object.
        parts += [_answer(kind, content) for kind, content in response.get("content", {}).items() if int(status) < 400]
    return "".join(parts) + "</details>"


def _answer(kind: str, content: Schema) -> str:
    schema = content.get("schema", {})
    example = content.get("example")
    shown = f"<pre>{escape(dumps(example, indent=2))}</pre>" if example is not None else ""
    # Of an event, the data is what has fields.
    data = content["itemSchema"]["properties"]["data"]["contentSchema"] if "itemSchema" in content else schema
    return f"<p><code>{escape(kind)}</code> {escape(schema.get('description', ''))}</p>{_fields(data)}{shown}"


def _fields(schema: Schema) -> str:
    rows = "".join(_row(name, field, required=required) for name, field, required in _walk(schema, ""))
    return _table(rows) if rows else ""


def _walk(schema: Schema, prefix: str) -> Iterator[tuple[str, Schema, bool]]:
    """Yield (name, schema, whether required) of every field, those of objects inside named `outer.inner`.

    Forms that an object may have are rows of their own, named `outer (form)`, and their fields follow.
    """
    for branch in schema.get("anyOf", ()):
        yield from _walk(branch, prefix)
    for branch in schema.get("oneOf", ()):
        if "title" in branch:
            yield f"{prefix} ({branch['title']})".strip(), branch, False
        yield from _walk(branch, prefix)
    if isinstance(schema.get("items"), dict):
        yield from _walk(schema["items"], f"{prefix}[]" if prefix else "[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _walk(schema["additionalProperties"], f"{prefix}[key]")
    for name, field in schema.get("properties", {}).items():
        full = f"{prefix}.{name}" if prefix else name
        yield full, field, name in schema.get("required", ())
        yield from _walk(field, full)


def _row(name: str, field: Schema, *, required: bool) -> str:
    default = field.get("default")
    notes = "required" if required else "" if default is None else f"default {dumps(default)}"
    kind = escape(_type_of(field))
    description = escape(field.get("description", ""))
    return f"<tr><td><code>{escape(name)}</code><td><code>{kind}</code><td>{escape(notes)}<td>{description}"


def _table(rows: str) -> str:
    return f"<table><tr><th>Field<th>Type<th><th>Meaning{rows}</table>"


def _type_of(schema: Schema) -> str:
    """Return a type as people write it: `integer | null`, `list of string`, `"left" | "right"`."""
    branches = schema.get("anyOf") or schema.get("oneOf")
    if branches:
        return " | ".join(dict.fromkeys(_type_of(branch) for branch in branches))
    if "enum" in schema:
        return " | ".join(dumps(value) for value in schema["enum"])
    if "const" in schema:
        return dumps(schema["const"])
    kind = schema.get("type", "any")
    if isinstance(schema.get("additionalProperties"), dict):
        return f"key to {_type_of(schema['additionalProperties'])}"
    if kind == "array":
        return f"list of {_type_of(schema.get('items', {}))}"
    return " | ".join(kind) if isinstance(kind, list) else str(kind)


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{escape(part)}</p>" for part in text.split("\n\n") if part.strip())
