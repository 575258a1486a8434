"""Struct values: converts google.protobuf.Struct to Python's values, without the errors of protobuf's own conversion.

Called by wire modules. A Struct has only floats, and may have those that JSON has no form for: NaN and infinities.
"""

from typing import Any

from google.protobuf.struct_pb2 import Struct, Value

_MOST = 2.0**63


def decode_struct(message: Struct) -> dict[str, Any]:
    """Return the values of a Struct by their names. Numbers of 64 bits without a fraction are int."""
    return {name: _decode_value(value) for name, value in message.fields.items()}


def _decode_value(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "struct_value":
            return decode_struct(value.struct_value)
        case "list_value":
            return [_decode_value(each) for each in value.list_value.values]
        case "number_value":
            number = value.number_value
            return int(number) if abs(number) < _MOST and number.is_integer() else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
    return None
