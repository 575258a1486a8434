"""Thinking budget: finds the reasoning marks that the reasoning budget of one prompt needs.

Called by the input processor. The model's format has the marks, and detects whether the prompt opens or closes the reasoning.
"""

import dataclasses
from collections.abc import Sequence

from tetrad.frontend.parsing.formats import ChatFormats, MarkIds
from tetrad.frontend.request.prompts import Prompt
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest


def check_budget(params: SamplingParams, formats: ChatFormats) -> None:
    """Refuse a budget for a model without a known reasoning format: the budget could not be enforced."""
    if params.thinking_token_budget is not None and formats.reasoning is None:
        text = (
            "thinking_token_budget is set but this model has no reasoning parser. Leave it out, or start the server with"
            " --reasoning-parser."
        )
        raise InvalidRequest(text, field="thinking_token_budget")


def marks_of_budget(params: SamplingParams, formats: ChatFormats, prompt: Prompt) -> MarkIds | None:
    """Return the marks of the output's reasoning. None: the request has no budget, or its output no reasoning.

    The start mark is empty if the prompt has opened the reasoning.

    Args:
        params: with a constraint that holds from the first token there is no reasoning.
        formats: the model's formats.
        prompt: its text shows whether reasoning is open or over; if it has no text, its ids do.
    """
    reasoning, marks, outputs = formats.reasoning, formats.thinking, params.structured_outputs
    if params.thinking_token_budget is None or (outputs is not None and outputs.start_after_token_ids is None):
        return None
    if reasoning is None or (prompt.text is not None and reasoning.is_over(prompt.text)):
        return None
    is_open = reasoning.is_open(prompt.text or "")
    if prompt.text is None:
        is_open |= _last_place(prompt.ids, marks.start) > _last_place(prompt.ids, marks.end)
    return dataclasses.replace(marks, start=()) if is_open else marks


def _last_place(ids: Sequence[int], wanted: tuple[int, ...]) -> int:
    """Return the start of the last occurrence of `wanted` in `ids`; -1: not found."""
    places = range(len(ids) - len(wanted), -1, -1)
    return next(
        (place for place in places if ids[place] == wanted[0] and tuple(ids[place : place + len(wanted)]) == wanted), -1
    )
