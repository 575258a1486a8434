"""PoolingState: the state of one pooling request, which has one sequence for each of its inputs.

Made by the pooling intake, updated by the output processor. Delivers one output when the last input has its answer.
"""

import time
from collections.abc import Callable

from tetrad.frontend.request.outputs import RequestOutput
from tetrad.frontend.request.request_state import RequestState
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.request.sequence import Sequence

POOLING = SamplingParams(max_tokens=1, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
"""The sampling parameters of every pooling request. Such a request samples no tokens."""


class PoolingState(RequestState):
    """The state of a pooling request from admission to its answer.

    Args:
        request_id: the caller's id; need not be unique.
        num_prompt_tokens: number of prompt tokens of all inputs together.
        arrival_time: wall clock, seconds.
        on_end: called with each sequence that has its answer or was aborted.
    """

    def __init__(
        self, request_id: str, num_prompt_tokens: int, *, arrival_time: float, on_end: Callable[[Sequence], None]
    ) -> None:
        super().__init__(request_id, None, [], POOLING, arrival_time=arrival_time)
        self.num_prompt_tokens = num_prompt_tokens
        self._on_end = on_end

    @property
    def finish_reasons(self) -> list[str | None]:
        """The finish reasons of the sequences, each once."""
        return sorted({sequence.finish_reason for sequence in self.sequences}, key=str)

    def deliver(self, sequence: Sequence) -> None:
        """Record the end of a sequence; after the last one put the request's only output on the collector."""
        self.num_unfinished -= 1
        self._on_end(sequence)
        if self.finished:
            self.metrics.finished_time = time.time()
            self.collector.put(
                RequestOutput(
                    request_id=self.request_id,
                    prompt=None,
                    prompt_token_ids=[],
                    prompt_logprobs=None,
                    outputs=[],
                    finished=True,
                    metrics=self.metrics,
                    lora_request=None,
                    num_cached_tokens=sum(each.num_cached_tokens for each in self.sequences),
                )
            )
