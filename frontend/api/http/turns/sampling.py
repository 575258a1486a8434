"""Turn sampling: converts vLLM's sampling fields in the Responses and the Messages API to SamplingParams.

SamplingParams checks ranges. A turn has one output, so there is no field `n`.
"""

from typing import Any

from pydantic import Field

from tetrad.frontend.api.http.schemas.fields import Integer
from tetrad.frontend.api.http.schemas.sampling_fields import SamplingFields
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest


class TurnSampling(SamplingFields):
    """vLLM's further fields in these APIs."""

    chat_template: str | None = Field(None, description="Jinja template of the conversation, instead of the model's.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables for the template.")
    thinking_token_budget: Integer | None = Field(
        None, description="Maximum number of reasoning tokens, for models that have a reasoning parser; -1: no limit."
    )


def turn_sampling_params(
    body: TurnSampling,
    defaults: dict[str, Any],
    *,
    max_tokens: int | None,
    stop: str | list[str] | None,
    json_format: StructuredOutputsParams | None = None,
    logprobs: int | None = None,
    in_deltas: bool,
) -> SamplingParams:
    """Return the sampling parameters of a body.

    Args:
        body: the request.
        defaults: the model's defaults, by SamplingParams' names.
        max_tokens: maximum number of tokens of the turn; None: as many as fit the context.
        stop: strings that end the turn.
        json_format: the constraint of the API's own format field.
        logprobs: number of top tokens with log-probabilities; None: no log-probabilities.
        in_deltas: whether each output has the new text only; otherwise there is one output, at the end.

    Raises:
        InvalidRequest: a value out of range, or two constraints.
    """
    fields = defaults | body.given_sampling_fields()
    if body.structured_outputs is not None and json_format is not None:
        text = "structured_outputs cannot be combined with a JSON output format: give one of them."
        raise InvalidRequest(text, field="structured_outputs")
    return SamplingParams(
        **fields,
        max_tokens=max_tokens,
        stop=stop,
        logprobs=logprobs,
        thinking_token_budget=body.thinking_token_budget,
        structured_outputs=json_format or _constraint(body),
        output_kind=RequestOutputKind.DELTA if in_deltas else RequestOutputKind.FINAL_ONLY,
    )


def _constraint(body: TurnSampling) -> StructuredOutputsParams | None:
    return None if body.structured_outputs is None else body.structured_outputs.to_params()
