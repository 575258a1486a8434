"""Fields: the base class and the field types of all HTTP bodies.

Unknown fields are ignored: OpenAI's clients send new ones before servers know them. Known fields that cannot be served are
refused. Values must have their JSON type: "5" is no number, and true is none. SamplingParams checks ranges.
"""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast
from pydantic_core import PydanticUseDefault


class Body(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), strict=True)


def _whole(value: object) -> object:
    """Return 5 for 5.0: JSON has one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _default_for_null(value: object) -> object:
    """Take the field's default for null: clients in typed languages send their unset fields so."""
    if value is None:
        raise PydanticUseDefault
    return value


Integer = Annotated[int, BeforeValidator(_whole)]
# Fields that may be null and are never None.
Flag = Annotated[bool, BeforeValidator(_default_for_null, json_schema_input_type=bool | None)]
Number = Annotated[Integer, BeforeValidator(_default_for_null, json_schema_input_type=int | None)]
Text = Annotated[str, BeforeValidator(_default_for_null, json_schema_input_type=str | None)]


class FailFastList(FailFast):
    """One wrong item is enough to refuse a list of a million."""

    __hash__ = object.__hash__  # unions of annotated types are sets of them


TokenIds = Annotated[list[int], FailFastList()]
Strings = Annotated[list[str], FailFastList()]
