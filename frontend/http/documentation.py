"""Documentation: what /docs says of routes that read their bodies themselves."""

from typing import Any

from pydantic import BaseModel


def documented(body: type[BaseModel]) -> dict[str, Any]:
    """Return the route arguments that show `body` as the JSON body of a route."""
    schema = body.model_json_schema()
    # OpenAPI has no place for definitions inside a path, so each reference is replaced by what it names.
    definitions = schema.pop("$defs", {})
    content = {"application/json": {"schema": _inlined(schema, definitions)}}
    return {"response_model": None, "openapi_extra": {"requestBody": {"required": True, "content": content}}}


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inlined(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    name = str(node.get("$ref", "")).rpartition("/")[2]
    if name in definitions:
        return _inlined(definitions[name], definitions)
    return {key: _inlined(value, definitions) for key, value in node.items()}
