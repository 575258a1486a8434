"""UnreadFields: fields of a message that are declared for later revisions, and are refused until code reads them.

Every service has such a list beside the code that decodes the message; tests/repository/unread_fields.py lists them all. If
such a field were ignored, its caller would get a wrong result without an error.
"""

from collections.abc import Callable, Iterable
from typing import Any

from google.protobuf.message import Message

from tetrad.services.errors import TetradError, Unsupported


class UnreadFields:
    """The fields of one kind of message that a service does not read.

    Args:
        kind: class of the message.
        names: names of the fields; KeyError for a field that the message does not have.
        owner: text for the service that refuses them, such as "this worker".
        error: class of the error.
    """

    def __init__(
        self, kind: type[Message], names: Iterable[str], *, owner: str, error: Callable[..., TetradError] = Unsupported
    ) -> None:
        self._owner, self._error = owner, error
        self.names = frozenset(names)
        self.message_name = kind.DESCRIPTOR.name
        fields = [kind.DESCRIPTOR.fields_by_name[name] for name in sorted(self.names)]
        self._with_presence = [field.name for field in fields if field.has_presence]
        self._without = [field.name for field in fields if not field.has_presence]

    def error_of(self, message: Any) -> TetradError | None:
        """Return the error that names the first of these fields that the message sets; None if it sets none."""
        for name in self._with_presence:
            if message.HasField(name):
                return self._error_of(name)
        for name in self._without:
            if getattr(message, name):
                return self._error_of(name)
        return None

    def refuse(self, message: Any) -> None:
        """Raise the error that names the first of these fields that the message sets, if it sets any."""
        if (error := self.error_of(message)) is not None:
            raise error

    def _error_of(self, name: str) -> TetradError:
        return self._error(f"{self._owner} does not support {name}.", field=name)
