"""Answers: encodes outputs and turns as messages of the public gRPC API. There is one Answers object per call, which keeps
only token counts.
"""

import json
from collections.abc import Iterable
from typing import TypeVar

from tetrad.frontend.chat.turn_stream import TurnPart
from tetrad.frontend.engine.wire import FINISH_REASON_TO_WIRE
from tetrad.frontend.parsing.elements.pieces import Content, Piece, Reasoning, ToolCallArguments, ToolCallStart
from tetrad.frontend.request.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from tetrad.frontend.request.spec_decode_metrics import RequestSpecDecodeMetrics
from tetrad.v1 import inference_pb2, types_pb2

Answer = TypeVar("Answer", inference_pb2.GenerateResponse, inference_pb2.ChatResponse)

_CHAT_FINISH = {
    "stop": inference_pb2.CHAT_FINISH_REASON_STOP,
    "length": inference_pb2.CHAT_FINISH_REASON_LENGTH,
    "abort": inference_pb2.CHAT_FINISH_REASON_ABORT,
    "error": inference_pb2.CHAT_FINISH_REASON_ERROR,
    "repetition": inference_pb2.CHAT_FINISH_REASON_REPETITION,
    "tool_calls": inference_pb2.CHAT_FINISH_REASON_TOOL_CALLS,
}


class Answers:
    """Makes the messages of one call.

    Args:
        request_id: id of the call's request.
    """

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        # Number of tokens of each choice so far, for its usage.
        self._num_tokens: dict[int, int] = {}
        self._num_reasoning: dict[int, int] = {}
        self._has_shown_prompt = self._has_shown_scores = False

    def completion(self, output: RequestOutput, new: CompletionOutput) -> inference_pb2.GenerateResponse:
        """Return the message with the new part of one of a request's outputs."""
        message = inference_pb2.GenerateResponse(text=new.text)
        if new.finish_reason is not None:
            message.finish_reason = FINISH_REASON_TO_WIRE[new.finish_reason]
        return self._fill(message, output, new)

    def turn(
        self, output: RequestOutput, part: TurnPart, *, echoed: str = "", with_reasoning: bool = True
    ) -> inference_pb2.ChatResponse:
        """Return the message with the new part of one of a conversation's turns.

        Args:
            output: the output with the common facts of all turns.
            part: the new part of the turn.
            echoed: echoed text at the start of the turn.
            with_reasoning: whether reasoning is returned.
        """
        index = part.output.index
        message = inference_pb2.ChatResponse()
        if index not in self._num_tokens:
            message.content = echoed
        _add_pieces(message, part.pieces, with_reasoning=with_reasoning)
        self._num_reasoning[index] = self._num_reasoning.get(index, 0) + part.num_reasoning_tokens
        if part.finish_reason is not None:
            message.finish_reason = _CHAT_FINISH[part.finish_reason]
            message.usage.reasoning_tokens = self._num_reasoning[index]
        return self._fill(message, output, part.output)

    def _fill(self, message: Answer, output: RequestOutput, new: CompletionOutput) -> Answer:
        """Fill in the common fields of both kinds of messages, and return `message`."""
        if output.prompt_logprobs is not None and not self._has_shown_prompt:
            self._has_shown_prompt = True
            prompt = zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)
            message.prompt_logprobs.extend(_token_logprobs(token_id, known) for token_id, known in prompt if known is not None)
        if (scores := output.prompt_token_id_logprobs) is not None and not self._has_shown_scores:
            self._has_shown_scores = True
            rows, width = scores.shape
            message.prompt_scores.CopyFrom(types_pb2.PromptScores(scores=scores.tobytes(), num_rows=rows, width=width))
        self._num_tokens[new.index] = self._num_tokens.get(new.index, 0) + len(new.token_ids)
        message.index = new.index
        message.token_ids.extend(new.token_ids)
        message.request_id = self._request_id
        if new.weight_versions:
            message.weight_version = new.weight_versions[-1].version
        if new.logprobs is not None:
            pairs = zip(new.token_ids, new.logprobs, strict=True)
            message.logprobs.extend(_token_logprobs(token_id, position) for token_id, position in pairs)
        if new.finish_reason is not None:
            message.usage.prompt_tokens = len(output.prompt_token_ids)
            message.usage.completion_tokens = self._num_tokens[new.index]
            message.usage.cached_tokens = output.num_cached_tokens or 0
        if (metrics := new.spec_decode_metrics) is not None and new.finish_reason is not None:
            message.spec_decode_metrics.CopyFrom(_metrics_of(metrics))
        if output.kv_transfer_params is not None:
            message.kv_transfer_params_json = json.dumps(output.kv_transfer_params)
        if isinstance(new.stop_reason, int):
            message.stop_reason.CopyFrom(types_pb2.StopReason(token_id=new.stop_reason))
        elif new.stop_reason is not None:
            message.stop_reason.CopyFrom(types_pb2.StopReason(text=new.stop_reason))
        return message


def _add_pieces(message: inference_pb2.ChatResponse, pieces: Iterable[Piece], *, with_reasoning: bool) -> None:
    """Add pieces to a message; pieces of the same kind, or of the same call, are joined."""
    calls: dict[int, inference_pb2.ToolCallDelta] = {}
    for piece in pieces:
        match piece:
            case Reasoning(text):
                message.reasoning += text if with_reasoning else ""
            case Content(text):
                message.content += text
            case ToolCallStart(index, name, call_id):
                calls[index] = message.tool_calls.add(index=index, id=call_id, name=name)
            case ToolCallArguments(index, text):
                if index not in calls:
                    calls[index] = message.tool_calls.add(index=index)
                calls[index].arguments_json += text


def _metrics_of(metrics: RequestSpecDecodeMetrics) -> inference_pb2.RequestSpecDecodeMetrics:
    return inference_pb2.RequestSpecDecodeMetrics(
        num_draft_tokens=metrics.num_draft_tokens,
        num_accepted_tokens=metrics.num_accepted,
        histogram=metrics.histogram,
        per_step_accepted=metrics.per_step_accepted,
        per_step_drafted=metrics.per_step_drafted,
    )


def _token_logprobs(token_id: int, position: PositionLogprobs) -> inference_pb2.TokenLogprobs:
    def message(candidate: int) -> inference_pb2.TokenLogprob:
        found = position[candidate]
        return inference_pb2.TokenLogprob(token_id=candidate, logprob=found.logprob, rank=found.rank, text=found.decoded_token)

    ranked = sorted(position, key=lambda candidate: -position[candidate].logprob)
    return inference_pb2.TokenLogprobs(sampled=message(token_id), top=[message(candidate) for candidate in ranked])
