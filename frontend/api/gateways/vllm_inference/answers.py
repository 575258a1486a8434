"""Answers: encodes outputs as GenerateResponses of vllm.Inference. There is one InferenceAnswers per call, which keeps
only token counts.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from tetrad.frontend.request.outputs import CompletionOutput, FinishReasonName, PositionLogprobs, RequestOutput
from tetrad.vllm_api import inference_pb2

_FINISH: dict[FinishReasonName, inference_pb2.FinishInfo.FinishReason] = {
    "stop": inference_pb2.FinishInfo.STOP,
    "length": inference_pb2.FinishInfo.LENGTH,
    "abort": inference_pb2.FinishInfo.ABORTED,
    "repetition": inference_pb2.FinishInfo.ABORTED,
}


class InferenceAnswers:
    """Makes the messages of one call.

    Args:
        options: the output fields that the call requests.
        eos_token_ids: ids that end a text.
    """

    def __init__(self, options: inference_pb2.ResponseOptions, eos_token_ids: Collection[int]) -> None:
        self._options = options
        self._eos_token_ids = eos_token_ids
        self._shows_text = options.output_text if options.HasField("output_text") else True
        self._num_tokens: Counter[int] = Counter()
        self._has_shown_prompt = False

    def of(self, output: RequestOutput) -> Iterator[inference_pb2.GenerateResponse]:
        """Yield the messages of one output of the request."""
        for new in output.outputs:
            message = inference_pb2.GenerateResponse(outputs=self._sequence(new))
            if not self._has_shown_prompt:
                self._has_shown_prompt = True
                message.prompt_info.CopyFrom(self._prompt(output))
            yield message

    def _sequence(self, new: CompletionOutput) -> inference_pb2.SequenceOutput:
        self._num_tokens[new.index] += len(new.token_ids)
        message = inference_pb2.SequenceOutput(
            index=new.index,
            text=new.text if self._shows_text else "",
            num_tokens=len(new.token_ids),
            token_ids=new.token_ids if self._options.output_token_ids else (),
        )
        if new.logprobs is not None:
            _fill_logprobs(message, new.token_ids, new.logprobs)
        if new.finish_reason is not None:
            message.finish_info.CopyFrom(self._finish(new))
        return message

    def _finish(self, new: CompletionOutput) -> inference_pb2.FinishInfo:
        reason = _FINISH[new.finish_reason or "stop"]
        message = inference_pb2.FinishInfo(num_output_tokens=self._num_tokens[new.index], finish_reason=reason)
        if isinstance(new.stop_reason, int):
            message.stop_token_id = new.stop_reason
        elif new.stop_reason is not None:
            message.stop_string = new.stop_reason
        elif new.finish_reason == "stop" and new.token_ids and new.token_ids[-1] in self._eos_token_ids:
            # Otherwise a grammar is complete: the last token belongs to the output, and no token has stopped it.
            message.eos_token_id = new.token_ids[-1]
        return message

    def _prompt(self, output: RequestOutput) -> inference_pb2.PromptInfo:
        ids = output.prompt_token_ids
        message = inference_pb2.PromptInfo(num_prompt_tokens=len(ids), token_ids=ids if self._options.prompt_token_ids else ())
        if output.prompt_logprobs is not None:
            _fill_logprobs(message, ids, output.prompt_logprobs)
        return message


def _fill_logprobs(
    message: inference_pb2.SequenceOutput | inference_pb2.PromptInfo,
    ids: Sequence[int],
    positions: Sequence[PositionLogprobs | None],
) -> None:
    """Add one entry per position to each column; zeros for a position without log-probabilities."""
    for token_id, position in zip(ids, positions, strict=True):
        candidates = message.candidate_tokens.add()
        if position is None:
            message.logprobs.append(0.0)
            message.ranks.append(0)
            continue
        for candidate, found in position.items():
            if candidate == token_id:
                message.logprobs.append(found.logprob)
                message.ranks.append(found.rank or 0)
            else:
                candidates.tokens.add(id=candidate, logprob=found.logprob, rank=found.rank or 0)
