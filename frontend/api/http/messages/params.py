"""Message parameters: converts a body of /v1/messages to sampling parameters."""

from tetrad.frontend.api.http.messages.bodies import MessagesRequest
from tetrad.frontend.api.http.turns.sampling import turn_sampling_params
from tetrad.frontend.chat.conversation import Conversation, forces_calls
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams


def message_params(llm: AsyncLLM, body: MessagesRequest, conversation: Conversation) -> SamplingParams:
    """Return the sampling parameters of a body with this conversation; InvalidRequest for a value out of range."""
    form, field = body.output_format, "output_format"
    if body.output_config is not None and body.output_config.format is not None:
        form, field = body.output_config.format, "output_config.format"
    if forces_calls(conversation.tool_choice):
        form = None
    params = turn_sampling_params(
        body,
        llm.default_sampling_fields(),
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        json_format=None if form is None else StructuredOutputsParams(json=form.schema_, request_field=field),
        in_deltas=body.stream,
    )
    # Clients enable thinking for any model: one without thinking answers at once.
    if body.thinking is not None and body.thinking.type == "enabled" and llm.chat_formats.reasoning is not None:
        params.thinking_token_budget = body.thinking.budget_tokens
    return params
