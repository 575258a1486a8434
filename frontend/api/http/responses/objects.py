"""Objects of the Responses API: makes the response and its output items as JSON. Pure; events.py updates them."""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.api.http.responses.bodies import FunctionBody, ResponsesRequest, ToolBody, ToolChoiceBody
from tetrad.frontend.api.http.responses.calls import call_fields, is_custom_call
from tetrad.frontend.api.http.responses.custom_tools import CUSTOM
from tetrad.frontend.api.http.responses.tools import offered
from tetrad.frontend.api.http.schemas.errors import status_of
from tetrad.frontend.api.http.schemas.objects import TokenLogprob
from tetrad.frontend.api.http.turns.blocks import Block
from tetrad.frontend.api.http.turns.totals import TurnTotals
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import TetradError

Json = dict[str, Any]

_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
_ITEM_TYPES = {"reasoning": "reasoning", "text": "message", "call": "function_call"}
_ID_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}


def new_response(
    response_id: str, body: ResponsesRequest, params: SamplingParams, *, model: str, created_at: int, store: bool
) -> Json:
    """Return the response to `body` before the generation.

    Args:
        response_id: id of the response.
        body: the request.
        params: the effective sampling parameters.
        model: model name in the response.
        created_at: time in seconds since 1970.
        store: whether the response is stored.
    """
    choice = body.tool_choice
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": "queued" if body.background else "in_progress",
        "background": bool(body.background),
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None} if body.reasoning is None else body.reasoning.model_dump(),
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": store,
        "temperature": params.temperature,
        "text": _text_config(body),
        "tool_choice": choice.model_dump(exclude_unset=True) if isinstance(choice, ToolChoiceBody) else choice or "auto",
        "tools": [_tool(tool) for _, tool in offered(body.tools or ())],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }


def item_id(response_id: str, block: Block, tools: Sequence[Json]) -> str:
    """Return the id of an output item; `items.response_of_item` returns its response."""
    return f"{_ID_PREFIXES[_item_type(block, tools)]}_{response_id.removeprefix('resp_')}_{block.index}"


def output_item(response_id: str, block: Block, status: str, logprobs: list[Any] | None, tools: Sequence[Json] = ()) -> Json:
    """Return an output item.

    Args:
        response_id: id of the response.
        block: the block of the item; if its text is empty, the item has no content yet.
        status: in_progress, completed or incomplete.
        logprobs: log-probabilities of its text; None if they were not requested.
        tools: the tools of the response.
    """
    item: Json = {"type": _item_type(block, tools), "id": item_id(response_id, block, tools), "status": status}
    match block.kind:
        case "reasoning":
            return item | {"summary": [], "content": _parts(block, None)}
        case "call":
            return item | call_fields(block, tools)
    return item | {"role": "assistant", "content": _parts(block, logprobs)}


def content_part(block: Block, text: str, logprobs: list[Any] | None) -> Json:
    """Return the single part of an output item with this text."""
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def text_logprobs(found: list[TokenLogprob]) -> list[TokenLogprob]:
    """Return log-probabilities in this API's form: bytes of a partial character are an empty list instead of null."""
    for top in (each for token in found for each in token.top_logprobs):
        top.bytes = top.bytes or []
    return found


def usage(totals: TurnTotals) -> Json:
    """Return the token counts of a response."""
    return {
        "input_tokens": totals.prompt_tokens,
        "input_tokens_details": {"cached_tokens": totals.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": totals.output_tokens,
        "output_tokens_details": {"reasoning_tokens": totals.reasoning_tokens},
        "total_tokens": totals.prompt_tokens + totals.output_tokens,
    }


def failure(error: TetradError) -> Json:
    """Return the `error` object of a failed response."""
    return {"code": _ERROR_CODES.get(status_of(error), "server_error"), "message": error.message}


def _item_type(block: Block, tools: Sequence[Json]) -> str:
    return "custom_tool_call" if is_custom_call(block, tools) else _ITEM_TYPES[block.kind]


def _parts(block: Block, logprobs: list[Any] | None) -> list[Json]:
    return [content_part(block, block.text, logprobs)] if block.text else []


def _text_config(body: ResponsesRequest) -> Json:
    form = None if body.text is None else body.text.format
    config: Json = {"format": {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_none=True)}
    if body.text is not None and body.text.verbosity is not None:
        config["verbosity"] = body.text.verbosity
    return config


def _tool(tool: FunctionBody) -> Json:
    fields = {"type": tool.type, "name": tool.name, "description": tool.description}
    if isinstance(tool, ToolBody) and tool.tools is not None:
        return fields | {"tools": [_tool(member) for member in tool.tools]}
    if tool.type == CUSTOM:
        return fields | {"format": {"type": "text"} if tool.format is None else tool.format.model_dump(exclude_none=True)}
    return fields | {"parameters": tool.parameters, "strict": bool(tool.strict)}
