"""Calls: makes the items and events of calls, of functions and of custom tools. Pure; one object per response."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tetrad.frontend.api.http.responses.custom_tools import InputText, input_of_arguments
from tetrad.frontend.api.http.responses.tools import called_function, is_custom
from tetrad.frontend.api.http.turns.blocks import Block

Json = dict[str, Any]

_INPUT = "response.custom_tool_call_input"
_ARGUMENTS = "response.function_call_arguments"


def is_custom_call(block: Block, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a block is a call of a custom tool; `tools` are those of the response."""
    return block.kind == "call" and is_custom(block.name, tools)


def call_fields(block: Block, tools: Sequence[Mapping[str, Any]]) -> Json:
    """Return the fields of a call's item that say what is called, and with which arguments or input."""
    called = {"call_id": block.call_id, **called_function(block.name, tools)}
    if is_custom_call(block, tools):
        return called | {"input": input_of_arguments(block.text) if block.text else ""}
    return called | {"arguments": block.text}


class CallEvents:
    """Makes the events of calls: their types and fields.

    Args:
        tools: the tools of the response, as JSON.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._tools = tools
        # The inputs of custom tools, by the index of their block.
        self._inputs: dict[int, InputText] = {}

    def grown(self, block: Block, text: str) -> Iterator[tuple[str, Json]]:
        """Yield the events of further text of the arguments; none if an input has no further text yet."""
        if not is_custom_call(block, self._tools):
            yield f"{_ARGUMENTS}.delta", {"delta": text}
        elif delta := self._inputs.setdefault(block.index, InputText()).feed(text):
            yield f"{_INPUT}.delta", {"delta": delta}

    def closed(self, block: Block) -> Iterator[tuple[str, Json]]:
        """Yield the last events of a call."""
        if not is_custom_call(block, self._tools):
            yield f"{_ARGUMENTS}.done", called_function(block.name, self._tools) | {"arguments": block.text}
            return
        rest = self._inputs.pop(block.index, InputText()).finish(block.text)
        if rest:
            yield f"{_INPUT}.delta", {"delta": rest}
        yield f"{_INPUT}.done", {"input": input_of_arguments(block.text)}
