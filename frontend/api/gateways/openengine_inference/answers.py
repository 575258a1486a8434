"""Answers: encodes outputs as GenerateResponses of openengine.v1.Inference. One OpenEngineAnswers per call.

Each output has its tokens, then one `finished` event; the last event of the request has the usage.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from tetrad.frontend.api.gateways.common.calls import GatewayRequest
from tetrad.frontend.api.gateways.openengine_inference.errors import engine_error
from tetrad.frontend.request.outputs import CompletionOutput, FinishReasonName, Logprob, PositionLogprobs, RequestOutput
from tetrad.openengine_api import common_pb2, inference_pb2
from tetrad.services.errors import TetradError

_FINISH: dict[FinishReasonName, inference_pb2.FinishReason] = {
    "stop": inference_pb2.FINISH_REASON_STOP,
    "length": inference_pb2.FINISH_REASON_LENGTH,
    "abort": inference_pb2.FINISH_REASON_CANCELLED,
    "repetition": inference_pb2.FINISH_REASON_STOP,
}
_MESSAGES: dict[FinishReasonName, str] = {"abort": "The request was aborted.", "repetition": "The output repeats itself."}

Select = Callable[[PositionLogprobs], Iterable[int]]
"""Takes a position's log-probabilities, returns the ids of the candidates to show."""


class OpenEngineAnswers:
    """Makes the messages of one call.

    Args:
        wanted: the decoded request.
        message: the client's message.
        eos_token_ids: the ids of the end-of-sequence tokens.
    """

    def __init__(self, wanted: GatewayRequest, message: inference_pb2.GenerateRequest, eos_token_ids: Collection[int]) -> None:
        self._request_id, self._num_outputs = wanted.request_id, wanted.params.n
        self._keeps_stop = message.stopping.include_stop_in_output
        self._select = _selection(message.response.output_candidates)
        self._select_of_prompt = _selection(message.response.prompt_candidates)
        self._prompt_start = message.response.prompt_logprob_start
        self._eos_token_ids = eos_token_ids
        self._num_prompt_tokens = self._num_completion_tokens = self._num_finished = 0
        self._num_cached_tokens: int | None = None

    def of(self, output: RequestOutput) -> Iterator[inference_pb2.GenerateResponse]:
        """Yield the messages of one output of the request."""
        self._num_prompt_tokens, self._num_cached_tokens = len(output.prompt_token_ids), output.num_cached_tokens
        if output.prompt_logprobs is not None:
            yield self._response(prompt=self._prompt(output.prompt_token_ids, output.prompt_logprobs))
        for new in output.outputs:
            self._num_completion_tokens += len(new.token_ids)
            tokens = self._tokens(new)
            if tokens or new.text:
                token = inference_pb2.TokenOutput(output_index=new.index, tokens=tokens, text=new.text)
                yield self._response(token=token)
            if new.finish_reason is not None:
                yield self._finish(new, new.finish_reason)

    def failure(self, error: TetradError) -> inference_pb2.GenerateResponse:
        """Return the last message of an accepted request that cannot be finished."""
        return self._response(error=engine_error(error), usage=self._usage() if self._num_prompt_tokens else None)

    def _tokens(self, new: CompletionOutput) -> list[inference_pb2.TokenInfo]:
        ids = new.token_ids
        if isinstance(new.stop_reason, int) and not self._keeps_stop:
            ids = ids[:-1]  # the client's stop token
        if new.logprobs is None:
            return [inference_pb2.TokenInfo(token_id=token_id) for token_id in ids]
        pairs = zip(ids, new.logprobs, strict=False)
        return [_token(token_id, position, self._select) for token_id, position in pairs]

    def _prompt(self, ids: list[int], positions: Sequence[PositionLogprobs | None]) -> inference_pb2.PromptOutput:
        message = inference_pb2.PromptOutput()
        for place, (token_id, position) in enumerate(zip(ids, positions, strict=True)):
            if position is None or place < self._prompt_start:
                message.tokens.add(token_id=token_id)
            else:
                message.tokens.append(_token(token_id, position, self._select_of_prompt))
        return message

    def _finish(self, new: CompletionOutput, reason: FinishReasonName) -> inference_pb2.GenerateResponse:
        self._num_finished += 1
        finished = inference_pb2.GenerationFinished(
            output_index=new.index, reason=_FINISH[reason], message=_MESSAGES.get(reason, ""), stop_match=self._match(new)
        )
        is_last = self._num_finished == self._num_outputs
        return self._response(finished=finished, usage=self._usage() if is_last else None)

    def _match(self, new: CompletionOutput) -> inference_pb2.StopMatch | None:
        if isinstance(new.stop_reason, int):
            return inference_pb2.StopMatch(stop_token_id=new.stop_reason)
        if new.stop_reason is not None:
            return inference_pb2.StopMatch(stop_text=new.stop_reason)
        if new.finish_reason == "stop" and new.token_ids and new.token_ids[-1] in self._eos_token_ids:
            # Otherwise a grammar is complete: the last token belongs to the output, and no token stopped it.
            return inference_pb2.StopMatch(eos_token_id=new.token_ids[-1])
        return None

    def _usage(self) -> inference_pb2.Usage:
        return inference_pb2.Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self._num_completion_tokens,
            total_tokens=self._num_prompt_tokens + self._num_completion_tokens,
            cached_prompt_tokens=self._num_cached_tokens,
        )

    def _response(
        self,
        *,
        prompt: inference_pb2.PromptOutput | None = None,
        token: inference_pb2.TokenOutput | None = None,
        finished: inference_pb2.GenerationFinished | None = None,
        error: common_pb2.EngineError | None = None,
        usage: inference_pb2.Usage | None = None,
    ) -> inference_pb2.GenerateResponse:
        return inference_pb2.GenerateResponse(
            request_id=self._request_id, prompt=prompt, token=token, finished=finished, error=error, usage=usage
        )


def _token(token_id: int, position: PositionLogprobs, select: Select) -> inference_pb2.TokenInfo:
    found = position[token_id]
    return inference_pb2.TokenInfo(
        token_id=token_id,
        token=found.decoded_token or "",
        logprob=found.logprob,
        rank=found.rank,
        candidates=[_candidate(each, position[each]) for each in select(position)],
    )


def _candidate(token_id: int, found: Logprob) -> inference_pb2.LogProb:
    return inference_pb2.LogProb(token_id=token_id, logprob=found.logprob, token=found.decoded_token or "", rank=found.rank)


def _selection(wanted: inference_pb2.CandidateTokenSelection) -> Select:
    """Return the function that selects the candidates of a position as the client asked; without a selection, none."""
    match wanted.WhichOneof("selection"):
        case "all":
            return lambda position: position
        case "token_ids":
            ids = tuple(wanted.token_ids.ids)
            return lambda position: (token_id for token_id in ids if token_id in position)
        case _:
            # The actual token is first in `position`; sorting includes it only if it is likely enough.
            number = wanted.top_n
            return lambda position: sorted(position, key=lambda token_id: -position[token_id].logprob)[:number]
