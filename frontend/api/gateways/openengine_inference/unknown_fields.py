"""Unknown fields: refuses requests with fields of other revisions of OpenEngine's schema.

A field of another revision changes the meaning of a request, so it must not be ignored. Only its number is known here.
"""

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tetrad.services.errors import InvalidRequest

_REVISION = 3


def refuse_unknown_fields(message: Message, path: str = "") -> None:
    """Raise InvalidRequest with path and field number if a message, or a message inside it, has an unknown field."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        name = f"{path}{unknown[0].field_number}"
        text = f"Field {name} of {message.DESCRIPTOR.name} is not supported: it is not in schema revision {_REVISION}."
        raise InvalidRequest(text, field=name)
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                refuse_unknown_fields(inner, f"{path}{field.name}.")
