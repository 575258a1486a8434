"""Random valid messages, made from their descriptors: boundary values, any choice of fields, columns of numbers."""

import struct

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st


def messages(descriptor: Descriptor, depth: int = 0) -> st.SearchStrategy:
    """Return random messages of a type; each field is there or not."""
    fields = {each.name: field_values(each, depth) for each in descriptor.fields}
    oneofs = [[each.name for each in group.fields] for group in descriptor.oneofs]

    def build(values: dict):
        for group in oneofs:
            for name in [name for name in group if name in values][1:]:
                del values[name]
        return values

    return st.fixed_dictionaries({}, optional=fields).map(build)


def field_values(field: FieldDescriptor, depth: int) -> st.SearchStrategy:
    """Return random values of a field."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return st.dictionaries(field_values(key, depth), field_values(value, depth), max_size=3)
    if field.message_type is not None and (depth >= 4 or field.message_type.full_name.startswith("google.")):
        return st.just([]) if field.is_repeated else st.just({})
    one = messages(field.message_type, depth + 1) if field.message_type is not None else SCALARS[field.cpp_type](field)
    return st.lists(one, max_size=3) if field.is_repeated else one


def integers(low: int, high: int) -> st.SearchStrategy:
    return st.integers(0 if low == 0 else -2, 40) | st.integers(low, high) | st.sampled_from([low, high])


EDGES = (0, 1, 2, 15, 16, 17, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
COLUMNS = st.binary(max_size=12) | st.lists(st.sampled_from(EDGES) | st.integers(0, 40), max_size=40).map(
    lambda values: struct.pack(f"<{len(values)}I", *values)
)
"""Columns of numbers: mostly whole numbers, sometimes a length that is no multiple."""

TEXTS = st.text(max_size=12) | st.sampled_from(["", "user", "assistant", "{}", "[]", '{"a": 1}', "(", "{{"])
SCALARS = {
    FieldDescriptor.CPPTYPE_STRING: lambda field: COLUMNS if field.type == FieldDescriptor.TYPE_BYTES else TEXTS,
    FieldDescriptor.CPPTYPE_BOOL: lambda _: st.booleans(),
    FieldDescriptor.CPPTYPE_FLOAT: lambda _: st.floats(0, 2, width=32) | st.floats(width=32),
    FieldDescriptor.CPPTYPE_DOUBLE: lambda _: st.floats(),
    FieldDescriptor.CPPTYPE_INT32: lambda _: integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: lambda _: integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: lambda _: integers(0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: lambda _: integers(0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: lambda field: st.sampled_from([value.number for value in field.enum_type.values]),
}
