"""Answers: encodes outputs as GenerateResponses. There is one EngineAnswers per call, which keeps only token counts.

A stream has a chunk per delta and, for each of the n outputs, a `complete` without ids at its end; without streaming there is
one `complete` per output, with all ids.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from smg_grpc_proto.generated import vllm_engine_pb2

from tetrad.frontend.request.outputs import CompletionOutput, FinishReasonName, PositionLogprobs, RequestOutput
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams

_FINISH: dict[FinishReasonName, str] = {"repetition": "stop"}
"""Finish reasons that have another name in this API."""


class EngineAnswers:
    """Makes the messages of one call.

    Args:
        params: the sampling parameters of the call.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._is_stream = params.output_kind is RequestOutputKind.DELTA
        self._num_top = params.logprobs
        self._num_prompt_top = params.prompt_logprobs
        self._num_tokens: Counter[int] = Counter()

    def of(self, output: RequestOutput) -> Iterator[vllm_engine_pb2.GenerateResponse]:
        """Yield the messages of one output of the request."""
        for new in output.outputs:
            self._num_tokens[new.index] += len(new.token_ids)
            if self._is_stream and new.token_ids:
                yield vllm_engine_pb2.GenerateResponse(chunk=self._chunk(output, new))
            if new.finish_reason is not None:
                yield vllm_engine_pb2.GenerateResponse(complete=self._complete(output, new))

    def _chunk(self, output: RequestOutput, new: CompletionOutput) -> vllm_engine_pb2.GenerateStreamChunk:
        return vllm_engine_pb2.GenerateStreamChunk(
            token_ids=new.token_ids,
            prompt_tokens=len(output.prompt_token_ids),
            completion_tokens=len(new.token_ids),  # of this chunk: clients add the numbers
            cached_tokens=output.num_cached_tokens or 0,
            output_logprobs=self._output_logprobs(new),
            input_logprobs=self._input_logprobs(output),
            index=new.index,
        )

    def _complete(self, output: RequestOutput, new: CompletionOutput) -> vllm_engine_pb2.GenerateComplete:
        has_all = not self._is_stream
        message = vllm_engine_pb2.GenerateComplete(
            output_ids=new.token_ids if has_all else (),
            finish_reason=_FINISH.get(new.finish_reason or "stop", new.finish_reason),
            prompt_tokens=len(output.prompt_token_ids),
            completion_tokens=self._num_tokens[new.index],
            cached_tokens=output.num_cached_tokens or 0,
            output_logprobs=self._output_logprobs(new) if has_all else None,
            input_logprobs=self._input_logprobs(output) if has_all else None,
            index=new.index,
        )
        if output.kv_transfer_params is not None:
            message.kv_transfer_params_json = json.dumps(output.kv_transfer_params)
        if isinstance(new.stop_reason, int):
            message.matched_token_id = new.stop_reason
        elif new.stop_reason is not None:
            message.matched_stop_str = new.stop_reason
        return message

    def _output_logprobs(self, new: CompletionOutput) -> vllm_engine_pb2.OutputLogProbs | None:
        if new.logprobs is None or self._num_top is None:
            return None
        pairs = list(zip(new.token_ids, new.logprobs, strict=True))
        return vllm_engine_pb2.OutputLogProbs(
            token_logprobs=[position[token_id].logprob for token_id, position in pairs],
            token_ids=new.token_ids,
            top_logprobs=[_top(position, self._num_top) for _, position in pairs],
        )

    def _input_logprobs(self, output: RequestOutput) -> vllm_engine_pb2.InputLogProbs | None:
        positions = output.prompt_logprobs
        if positions is None or self._num_prompt_top is None:
            return None
        ids = output.prompt_token_ids
        return vllm_engine_pb2.InputLogProbs(
            token_logprobs=_prompt_values(ids, positions),
            token_ids=ids,
            top_logprobs=[_top(position or {}, self._num_prompt_top) for position in positions],
        )


def _prompt_values(ids: Sequence[int], positions: Sequence[PositionLogprobs | None]) -> list[vllm_engine_pb2.InputTokenLogProb]:
    """Return the log-probability of each token of a prompt; the first token has none."""
    pairs = zip(ids, positions, strict=True)
    return [
        vllm_engine_pb2.InputTokenLogProb(value=None if position is None else position[token_id].logprob)
        for token_id, position in pairs
    ]


def _top(position: PositionLogprobs, number: int) -> vllm_engine_pb2.TopLogProbs:
    """Return the most likely tokens of a position; -1: all. The sampled token is included only if it is one of these."""
    ranked = sorted(position, key=lambda token_id: -position[token_id].logprob)
    ids = ranked if number == -1 else ranked[:number]
    return vllm_engine_pb2.TopLogProbs(values=[position[token_id].logprob for token_id in ids], token_ids=ids)
