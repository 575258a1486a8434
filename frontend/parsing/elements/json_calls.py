"""JSON calls: reads {"name": ..., "arguments": {...}}, alone or in an array, as most models write their calls.

A call starts as soon as its name is known and its arguments begin; from then on their text passes through. Until then the text
may be something else: the reader then returns False, and the source's record has the text. Keys come in any order.
"""

from dataclasses import dataclass

from tetrad.frontend.parsing.elements.call_list import read_call_list
from tetrad.frontend.parsing.elements.json_scanner import pass_value, read_string, read_value, skip_space, unquoted
from tetrad.frontend.parsing.elements.piece_writer import PieceWriter
from tetrad.frontend.parsing.elements.text_source import TextSource, Waiting

_ARGUMENTS_KEYS = ("arguments", "parameters")
_USUAL_KEYS = frozenset({"name", "type", "id", *_ARGUMENTS_KEYS})


@dataclass(slots=True)
class _Call:
    name: str = ""
    # Arguments that came before the name.
    early_arguments: str = ""
    has_other_keys: bool = False
    announced: bool = False

    def announce(self, writer: PieceWriter, arguments: str) -> None:
        writer.start(self.name)
        writer.arguments(arguments)
        self.announced = True


def read_call(source: TextSource, writer: PieceWriter, *, bare: bool = False) -> Waiting[bool]:
    """Read one call. False: none was announced.

    A call that breaks off after it was announced keeps the arguments it has; what follows is left unread.

    Args:
        bare: no marker says that this is a call. It must have arguments then, and no keys that calls do not have.
    """
    call = _Call()
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
    # With other keys there may be arguments under a wrong name: then this is no call, for they must not be lost.
    if call.name and not call.announced and not bare and not call.has_other_keys:
        call.announce(writer, "{}")
    return call.announced


def read_call_or_calls(source: TextSource, writer: PieceWriter) -> Waiting[bool]:
    """Read one call or an array of calls. What is no call becomes content, with all that the source has recorded.

    Returns:
        Whether there was a call and the array, if it was one, has ended as arrays do.
    """
    if (yield from source.starts_with("[")):
        return (yield from read_calls(source, writer))
    announced = yield from read_call(source, writer)
    text = source.recorded()
    if not announced:
        writer.content(text)
    return announced


def read_calls(source: TextSource, writer: PieceWriter) -> Waiting[bool]:
    """Read an array of calls; see read_call_list."""
    return (yield from read_call_list(source, writer, read_call))


def _read_member(source: TextSource, writer: PieceWriter, call: _Call, bare: bool) -> Waiting[bool]:
    key = yield from read_string(source)
    if key is None or (bare and not call.announced and key not in _USUAL_KEYS):
        return False
    yield from skip_space(source)
    if not (yield from source.skip(":")):
        return False
    yield from skip_space(source)
    if key == "name" and not call.name:
        return (yield from _read_name(source, writer, call))
    if key in _ARGUMENTS_KEYS and not call.announced:
        return (yield from _read_arguments(source, writer, call))
    call.has_other_keys |= key not in _USUAL_KEYS
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
    """Return the JSON text of an object that a value is, holds as a string, or leaves out; empty if it is none of these."""
    if value == "null":
        return "{}"
    if value.startswith('"'):
        value = (unquoted(value) or "").strip()
    return value if value.startswith("{") else ""
