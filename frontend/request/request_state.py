"""RequestState: the state of one request: its n sequences, its output kind, its times, its first phase on another engine core.

Made by the input processor, updated by the output processor; makes RequestOutputs from its sequences.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tetrad.frontend.media.features import MediaFeature
from tetrad.frontend.request.admission import Ticket
from tetrad.frontend.request.call_trace import NO_CALL
from tetrad.frontend.request.collector import OutputCollector
from tetrad.frontend.request.kv_transfer import KvTransfer
from tetrad.frontend.request.outputs import LoRARequest, PromptPositions, RequestMetrics, RequestOutput
from tetrad.frontend.request.position_logprobs import FlatLogprobs, Positions
from tetrad.frontend.request.prompt_scores import PromptScores
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.request.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The first phase of a request. The request's own facts include these, so that it counts once.

    Attributes:
        num_cached_tokens: number of prompt tokens that the producer had in its prefix cache; None: there was no such phase.
        queued_time_s, prefill_time_s: as in RequestMetrics, at the producer.
    """

    num_cached_tokens: int | None = None
    queued_time_s: float = 0.0
    prefill_time_s: float = 0.0

    def num_cached(self, num_cached_tokens: int, num_external_tokens: int) -> int:
        """Return the number of tokens that no engine core has computed for this request.

        Args:
            num_cached_tokens: number of prompt tokens that the consumer had in its prefix cache, with those that it read.
            num_external_tokens: number of tokens that it read from another engine core.
        """
        if self.num_cached_tokens is None:
            return num_cached_tokens
        return max(num_cached_tokens - num_external_tokens, self.num_cached_tokens)


NOT_PREFILLED = Prefilled()


class RequestState:
    """The state of a request from admission to its last output.

    Args:
        request_id: the caller's id; need not be unique.
        prompt: the text of the prompt, if known.
        prompt_token_ids: the ids of the prompt.
        params: sampling parameters.
        arrival_time: wall clock, seconds.
    """

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        arrival_time: float,
        lora_request: LoRARequest | None = None,
        predicted_ids: Iterable[int] = (),
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.num_prompt_tokens = len(prompt_token_ids)
        self.params = params
        self.kind = params.output_kind
        self.lora_request = lora_request
        self.predicted_ids = list(predicted_ids)
        self.sequences: list[Sequence] = []
        self.num_unfinished = 0
        self.collector = OutputCollector(aggregate=self.kind is RequestOutputKind.DELTA)
        self.metrics = RequestMetrics(arrival_time=arrival_time)
        self.num_cached_tokens: int | None = None
        self.prefilled = NOT_PREFILLED
        # Where the prompt's blocks are kept for another engine core.
        self.kv_transfer: KvTransfer | None = None
        # Tokens of a prompt adapter before the prompt: answers neither contain nor count them.
        self.num_virtual_tokens = 0
        # The images of the prompt, for further requests with the same prompt.
        self.features: tuple[MediaFeature, ...] = ()
        self.call = NO_CALL
        # A prompt of one token has no log-probabilities: the first token never has one.
        nothing_to_come = params.prompt_logprobs is not None and len(prompt_token_ids) == 1
        self._prompt_logprobs: PromptPositions | None = self._with_first([]) if nothing_to_come else None
        self._prompt_scores: Any = None  # an array, once they are known
        self._has_scores = False

        self._ticket: Ticket | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def hold(self, ticket: Ticket) -> None:
        """Hold the request's admission until the request is retired."""
        ticket.correct(self.num_prompt_tokens)
        self._ticket = ticket

    def expire_after(self, delay_s: float, expire: Callable[[], None]) -> None:
        """Call `expire` in `delay_s` seconds, unless the request is retired before."""
        self._expiry = asyncio.get_running_loop().call_later(delay_s, expire)

    def retire(self) -> None:
        """Release the admission and cancel the timer of the deadline: the request has ended."""
        if self._ticket is not None:
            self._ticket.release()
        if self._expiry is not None:
            self._expiry.cancel()

    @property
    def finished(self) -> bool:
        """Whether all sequences have finished."""
        return self.num_unfinished == 0

    @property
    def finish_reasons(self) -> list[str | None]:
        """The finish reason of each sequence; None: the sequence is unfinished."""
        return [sequence.finish_reason for sequence in self.sequences]

    @property
    def _num_cached_of_prompt(self) -> int | None:
        return None if self.num_cached_tokens is None else max(self.num_cached_tokens - self.num_virtual_tokens, 0)

    def add_sequence(self, sequence: Sequence) -> None:
        """Add one of the n sequences, before the request is sent."""
        self.sequences.append(sequence)
        self.num_unfinished += 1

    def count_tokens(self, number: int, now: float) -> bool:
        """Count tokens that were received at `now`, in seconds of the wall clock; return True for the first ones."""
        metrics = self.metrics
        metrics.num_generation_tokens += number
        metrics.last_token_time = now
        if metrics.first_token_time is not None:
            return False
        metrics.first_token_time = now
        if self._ticket is not None:
            self._ticket.leave_queue()
        return True

    def set_prompt_logprobs(self, positions: Positions) -> None:
        """Store the prompt's log-probabilities. All n sequences have the same; the first ones received are kept."""
        if self._prompt_logprobs is None and self.params.prompt_logprobs is not None:
            self._prompt_logprobs = self._with_first(positions)

    def _with_first(self, positions: Positions) -> PromptPositions:
        """Return the positions of the whole prompt: its first token has no predecessor, so it has no log-probability."""
        if not self.params.flat_logprobs:
            return [None, *positions]
        flat = FlatLogprobs()
        flat.append(None)
        flat.extend(positions)
        return flat

    def set_prompt_scores(self, scores: PromptScores) -> None:
        """Store the scores at positions of the prompt; as for log-probabilities, the first ones received are kept."""
        if not self._has_scores and self.params.prompt_logprob_token_ids is not None:
            self._has_scores, self._prompt_scores = True, scores.to_array()

    def deliver(self, sequence: Sequence) -> None:
        """Put the new output of a sequence, if any, on the collector."""
        if sequence.finished:
            self.num_unfinished -= 1
            if self.finished:
                self.metrics.finished_time = time.time()
        if self.kind is RequestOutputKind.FINAL_ONLY:
            if not self.finished:
                return
            outputs = [output for each in self.sequences if (output := each.take_output(self.kind)) is not None]
        else:
            output = sequence.take_output(self.kind)
            if output is None:
                return
            outputs = [output]
        prompt_logprobs = self._prompt_logprobs
        transfer = self.kv_transfer if self.finished else None
        if self.kind is RequestOutputKind.DELTA and prompt_logprobs is not None:
            self._prompt_logprobs = []
            prompt_logprobs = prompt_logprobs or None
        scores = self._prompt_scores
        if self.kind is RequestOutputKind.DELTA:
            self._prompt_scores = None
        self.collector.put(
            RequestOutput(
                request_id=self.request_id,
                prompt=self.prompt,
                prompt_token_ids=self.prompt_token_ids,
                prompt_logprobs=prompt_logprobs,
                outputs=outputs,
                finished=self.finished,
                metrics=self.metrics,
                lora_request=self.lora_request,
                num_cached_tokens=self._num_cached_of_prompt,
                kv_transfer_params=None if transfer is None else transfer.to_json(),
                prompt_token_id_logprobs=scores,
            )
        )
