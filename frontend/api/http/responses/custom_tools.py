"""Custom tools: tools whose input is a text instead of JSON arguments. Pure.

Models know functions only, so a custom tool is a function with one argument, a text. `InputText` decodes this argument while
the call is generated. A grammar or a regular expression becomes the pattern of the argument, and the tool is strict.
"""

import json
import re
from typing import Any

from tetrad.frontend.api.http.responses.bodies import CustomFormat, FunctionBody
from tetrad.frontend.api.http.responses.lark_patterns import pattern_of_lark
from tetrad.frontend.api.http.turns.blocks import arguments_of
from tetrad.frontend.parsing.elements.interface import Tool
from tetrad.services.errors import InvalidRequest

CUSTOM = "custom"
_INPUT = "input"
_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_MAX_OPENING = 64
"""Characters within which the argument must begin to be decoded as it is generated; later ones are decoded at the end."""

# A definition describes the whole input, so its outer anchors mean nothing. Behind a backslash the sign is a character.
_ANCHORS = re.compile(r"\A\^|(?<!\\)\$\Z")
_HIGH = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
# Characters and whole escapes. Two escapes may be one character.
_COMPLETE = re.compile(rf'(?:[^"\\]|\\["\\/bfnrt]|{_HIGH}{_LOW}|(?!{_HIGH})\\u[0-9a-fA-F]{{4}})*')
# The beginning of an escape, to which more text may belong.
_INCOMPLETE = re.compile(rf"\\(?:u[0-9a-fA-F]{{0,3}})?|{_HIGH}(?:\\(?:u[0-9a-fA-F]{{0,3}})?)?")
_ALONE = re.compile(rf"{_HIGH}|\\")


def custom_tool(name: str, body: FunctionBody, path: str) -> Tool:
    """Return the function that stands for a custom tool; InvalidRequest for a format that cannot be used.

    Args:
        name: the tool's name for the model.
        body: the tool.
        path: the tool's place in the request, for errors.
    """
    for field in ("parameters", "strict"):
        if getattr(body, field) is not None:
            raise InvalidRequest(f"{path}.{field}: a custom tool has no {field}.", field=f"{path}.{field}")
    argument: dict[str, Any] = {"type": "string", "description": "The input of the tool, as text."}
    form = body.format
    if form is not None and form.type == "grammar":
        kind = "Lark grammar" if form.syntax == "lark" else "regular expression"
        argument["description"] += f" It matches this {kind}:\n{form.definition}"
        argument["pattern"] = f"^(?:{_pattern(form, path)})$"
    parameters = {"type": "object", "properties": {_INPUT: argument}, "required": [_INPUT], "additionalProperties": False}
    return Tool(name, body.description or "", parameters, "pattern" in argument)


def arguments_of_input(text: str) -> str:
    """Return the arguments of the function, as JSON text, that stand for an input."""
    return json.dumps({_INPUT: text}, ensure_ascii=False)


def input_of_arguments(arguments: str) -> str:
    """Return the input of a call; for a call with other arguments these as JSON text, as the model wrote them."""
    decoded = InputText()
    return decoded.feed(arguments) + decoded.finish(arguments)


class InputText:
    """Decodes the input of a call from the JSON text of its arguments, in chunks of any size."""

    def __init__(self) -> None:
        self._rest = ""
        self._has_begun = self._is_over = False

    def feed(self, arguments: str) -> str:
        """Return the further text of the input that is certain after further text of the arguments."""
        if self._is_over:
            return ""
        self._rest += arguments
        if not self._has_begun:
            opening = _OPENING.match(self._rest)
            if opening is None:
                self._is_over = len(self._rest) > _MAX_OPENING
                return ""
            self._has_begun, self._rest = True, self._rest[opening.end() :]
        return self._decoded()

    def finish(self, arguments: str) -> str:
        """Return the text that is left at the end of the call; `arguments` are the whole arguments."""
        if self._has_begun:
            return ""
        value = arguments_of(arguments).get(_INPUT)
        return value if isinstance(value, str) else arguments

    def _decoded(self) -> str:
        text: str = ""
        while True:
            complete = _COMPLETE.match(self._rest)
            assert complete is not None, "the pattern matches the empty text"
            text += str(json.loads(f'"{complete[0]}"', strict=False))
            self._rest = self._rest[complete.end() :]
            wrong = None if _INCOMPLETE.fullmatch(self._rest) else _ALONE.match(self._rest)
            if wrong is None:
                break
            # A mistake of the model: half a character, or a backslash that begins no escape and stands for itself.
            text += "\\" if wrong[0] == "\\" else "\ufffd"
            self._rest = self._rest[wrong.end() :]
        self._is_over = self._rest.startswith('"')
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _pattern(form: CustomFormat, path: str) -> str:
    field = f"{path}.format.definition"
    if not form.definition:
        raise InvalidRequest(f"{field}: Field required", field=field)
    if form.syntax == "lark":
        return pattern_of_lark(form.definition, field)
    if form.syntax != "regex":
        raise InvalidRequest(f"{path}.format.syntax must be 'lark' or 'regex'.", field=f"{path}.format.syntax")
    return _ANCHORS.sub("", form.definition)
