"""Constraint start: decides whether a constraint holds from the first token or only after the reasoning.

Called for chats, whose text shows where reasoning begins, and by the input processor for all other prompts. Pure.
"""

import dataclasses

from tetrad.frontend.parsing.formats import ChatFormats
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams


def behind_reasoning(
    params: SamplingParams, outputs: StructuredOutputsParams, formats: ChatFormats, prompt: str
) -> SamplingParams:
    """Return `params` with a constraint that starts after the reasoning, if reasoning may follow `prompt`."""
    if outputs.start_after_token_ids is None and _waits(outputs, formats, prompt):
        # A model that may answer without reasoning: the constraint holds from the first token, unless it opens reasoning.
        opening = None if formats.reasoning is None or formats.reasoning.is_open(prompt) else list(formats.preamble.start)
        end = list(formats.preamble.end)
        outputs = dataclasses.replace(outputs, start_after_token_ids=end, opening_token_ids=opening)
    return dataclasses.replace(params, structured_outputs=outputs)


def behind_open_reasoning(params: SamplingParams, formats: ChatFormats) -> SamplingParams:
    """Return `params` with their constraint, if any, after the end of reasoning that is open already."""
    outputs = params.structured_outputs
    if outputs is None or outputs.start_after_token_ids is not None or formats.reasoning is None:
        return params
    outputs = dataclasses.replace(outputs, start_after_token_ids=list(formats.preamble.end))
    return dataclasses.replace(params, structured_outputs=outputs)


def _waits(outputs: StructuredOutputsParams, formats: ChatFormats, prompt: str) -> bool:
    """Return whether a constraint must start after the reasoning."""
    if formats.reasoning is None or formats.reasoning.is_over(prompt):
        return False
    # If content is wrapped, the tag's own marks separate calls from reasoning, and calls precede the answer's wrapping.
    return outputs.structural_tag is None or formats.tools is None or not formats.tools.wraps_content
