"""Fields: the base class and the field types of all HTTP bodies.

Unknown fields are ignored: OpenAI's clients send new ones before servers support them. Known fields that are not supported are
refused. Values must have their JSON type: neither "5" nor true is a number. SamplingParams checks ranges.
"""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast
from pydantic_core import PydanticUseDefault

from tetrad.services.errors import InvalidRequest


class Body(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), strict=True)


def _whole(value: object) -> object:
    """Return a float without a fraction as an integer, because JSON has only one type of numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _default_for_null(value: object) -> object:
    """Use the field's default for null: clients in typed languages send unset fields as null."""
    if value is None:
        raise PydanticUseDefault
    return value


Integer = Annotated[int, BeforeValidator(_whole)]
# Types of fields that accept null but never have the value None.
Flag = Annotated[bool, BeforeValidator(_default_for_null, json_schema_input_type=bool | None)]
Number = Annotated[Integer, BeforeValidator(_default_for_null, json_schema_input_type=int | None)]
Text = Annotated[str, BeforeValidator(_default_for_null, json_schema_input_type=str | None)]


class FailFastList(FailFast):
    """Validates a list up to the first invalid item, because a list may have a million items."""

    __hash__ = object.__hash__  # unions of annotated types need hashes


TokenIds = Annotated[list[int], FailFastList()]
Strings = Annotated[list[str], FailFastList()]


def required(path: str, name: str, value: str | None) -> str:
    """Return a field that the type of an item or block requires; InvalidRequest if it is missing."""
    if value is None:
        raise InvalidRequest(f"{path}.{name}: Field required", field=f"{path}.{name}")
    return value
