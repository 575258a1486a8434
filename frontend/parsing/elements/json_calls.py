"""JSON calls: reads {"name": ..., "arguments": {...}}, the form of most models' calls, alone or in an array.

A call is announced as soon as its name is known and its arguments begin; from then on their text is passed on. Before that the
text may turn out not to be a call: the reader then returns False, and the source's record has the text. Keys have any order.
"""

from dataclasses import dataclass
from functools import partial

from tetrad.frontend.parsing.elements.call_list import read_call_list
from tetrad.frontend.parsing.elements.json_scanner import pass_value, read_string, read_value, skip_space, unquoted
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting


@dataclass(frozen=True, slots=True)
class CallKeys:
    """The keys of a call.

    Attributes:
        name: key of the function's name.
        arguments: keys of the arguments.
        others: keys without meaning.
    """

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")
    others: tuple[str, ...] = ("type", "id")

    @property
    def all(self) -> tuple[str, ...]:
        """All keys."""
        return (self.name, *self.arguments, *self.others)


USUAL_KEYS = CallKeys()


@dataclass(slots=True)
class _Call:
    keys: CallKeys
    name: str = ""
    # Arguments that were read before the name.
    early_arguments: str = ""
    has_other_keys: bool = False
    announced: bool = False

    def announce(self, writer: PieceWriter, arguments: str) -> None:
        writer.start(self.name)
        writer.arguments(arguments)
        self.announced = True


def read_call(source: TextSource, writer: PieceWriter, *, bare: bool = False, keys: CallKeys = USUAL_KEYS) -> Waiting[bool]:
    """Read one call; return whether a call was announced.

    A malformed call keeps the arguments before the error if it was announced; the rest of the text stays unread.

    Args:
        bare: whether the call has no marker. It must then have arguments, and only keys of calls.
        keys: the keys of calls.
    """
    call = _Call(keys)
    if not (yield from source.skip("{")):
        return False
    while True:
        yield from skip_space(source)
        if (yield from source.skip("}")):
            break
        if not (yield from _read_member(source, writer, call, bare)):
            return call.announced
        yield from skip_space(source)
        if not (yield from source.skip(",")) and (yield from source.peek()) != "}":
            return call.announced
    # Other keys may be misnamed arguments: the text is then not treated as a call, so that they are not lost.
    if call.name and not call.announced and not bare and not call.has_other_keys:
        call.announce(writer, "{}")
    return call.announced


def read_call_or_calls(source: TextSource, writer: PieceWriter, keys: CallKeys = USUAL_KEYS) -> Waiting[bool]:
    """Read one call or an array of calls. Text that is not a call becomes content, together with the source's record.

    Returns:
        Whether there was a call, and the array, if any, was closed.
    """
    if (yield from source.starts_with("[")):
        return (yield from read_calls(source, writer, keys))
    announced = yield from read_call(source, writer, keys=keys)
    text = source.recorded()
    if not announced:
        writer.content(text)
    return announced


def read_calls(source: TextSource, writer: PieceWriter, keys: CallKeys = USUAL_KEYS) -> Waiting[bool]:
    """Read an array of calls; see read_call_list."""
    return (yield from read_call_list(source, writer, partial(read_call, keys=keys)))


def _read_member(source: TextSource, writer: PieceWriter, call: _Call, bare: bool) -> Waiting[bool]:
    key = yield from read_string(source)
    if key is None or (bare and not call.announced and key not in call.keys.all):
        return False
    yield from skip_space(source)
    if not (yield from source.skip(":")):
        return False
    yield from skip_space(source)
    if key == call.keys.name and not call.name:
        return (yield from _read_name(source, writer, call))
    if key in call.keys.arguments and not call.announced:
        return (yield from _read_arguments(source, writer, call))
    call.has_other_keys |= key not in call.keys.all
    return (yield from read_value(source)) is not None


def _read_name(source: TextSource, writer: PieceWriter, call: _Call) -> Waiting[bool]:
    call.name = (yield from read_string(source)) or ""
    if call.name and call.early_arguments:
        call.announce(writer, call.early_arguments)
    return bool(call.name)


def _read_arguments(source: TextSource, writer: PieceWriter, call: _Call) -> Waiting[bool]:
    if call.name and (yield from source.peek()) == "{":
        call.announce(writer, "")
        return (yield from pass_value(source, writer.arguments))
    text = yield from read_value(source)
    arguments = _as_object(text or "")
    if not arguments:
        return False
    if call.name:
        call.announce(writer, arguments)
    call.early_arguments = arguments
    return True


def _as_object(value: str) -> str:
    """Return the JSON object in a value: the value itself, the content of a string, or {} for null; empty for other values."""
    if value == "null":
        return "{}"
    if value.startswith('"'):
        value = (unquoted(value) or "").strip()
    return value if value.startswith("{") else ""
