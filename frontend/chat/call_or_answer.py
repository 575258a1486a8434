"""Call or answer: makes the constraint of a turn that either calls tools freely or answers in JSON.

A constraint of `response_format` alone would not allow calls. Both are possible if the first characters of a call differ from
those of a JSON document, and a call needs no surrounding marks. Pure.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from tetrad.frontend.parsing.elements.interface import Tool, ToolFormat
from tetrad.frontend.parsing.elements.pieces import ToolCallStart
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams

_SEPARATOR = "\n"


def call_or_answer(
    answer: StructuredOutputsParams, tools: Sequence[Tool], tool_format: ToolFormat, *, parallel: bool
) -> StructuredOutputsParams | None:
    """Return the constraint; None if the answer is not JSON, or the tool format does not allow both.

    Args:
        answer: the constraint of answers that the client requests.
        tools: the tools that may be called; the arguments of strict ones are constrained to their schema.
        tool_format: the model's format of calls.
        parallel: allow more than one call.
    """
    schema = _schema_of(answer)
    if schema is None or tool_format.wraps_content:
        return None
    structures = (tool_format.structural_tag(tools) or {}).get("structures", [])
    if not all(_stands_alone(structure, tools, tool_format) for structure in structures) or not structures:
        return None
    calls = [
        {"begin": each["begin"], "content": {"type": "json_schema", "json_schema": each["schema"]}, "end": each["end"]}
        for each in structures
    ]
    separated: dict[str, Any] = {"type": "tags_with_separator", "tags": calls, "separator": _SEPARATOR}
    separated |= {"at_least_one": True, "stop_after_first": not parallel}
    either = {"type": "or", "elements": [{"type": "json_schema", "json_schema": schema}, separated]}
    tag = json.dumps({"type": "structural_tag", "format": either})
    return dataclasses.replace(answer, json=None, json_object=None, structural_tag=tag)


def _schema_of(answer: StructuredOutputsParams) -> dict[str, Any] | None:
    if answer.json_object:
        return {"type": "object"}
    if answer.json is None:
        return None
    schema: dict[str, Any] = json.loads(answer.json_schema)
    return schema


def _stands_alone(structure: dict[str, Any], tools: Sequence[Tool], tool_format: ToolFormat) -> bool:
    """Return whether calls in this form are parsed as calls without surrounding marks, and cannot be the start of JSON."""
    begin, end = structure["begin"], structure["end"]
    if not begin or not end or begin[0] in '{["-0123456789tfn \n':
        return False
    parser = tool_format.parser(tools)
    pieces = [*parser.feed(_SEPARATOR.join([f"{begin}{{}}{end}"] * 2)), *parser.finish()]
    return sum(isinstance(piece, ToolCallStart) for piece in pieces) == 2
