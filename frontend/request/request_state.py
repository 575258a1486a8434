"""RequestState: the state of one request: its n sequences, its kind of output, its times.

Made by the input processor, updated by the output processor; makes RequestOutputs from its sequences.
"""

import asyncio
import time
from collections.abc import Callable, Iterable

from tetrad.frontend.request.admission import Ticket
from tetrad.frontend.request.call_trace import NO_CALL
from tetrad.frontend.request.collector import OutputCollector
from tetrad.frontend.request.outputs import LoRARequest, PositionLogprobs, RequestMetrics, RequestOutput
from tetrad.frontend.request.sampling_params import RequestOutputKind, SamplingParams
from tetrad.frontend.request.sequence import Sequence


class RequestState:
    """A request from admission to its last output.

    Args:
        request_id: the caller's id; need not be unique.
        prompt: its text, if known.
        prompt_token_ids: its ids.
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
        # Of a prompt adapter, before the prompt: answers neither show nor count them.
        self.num_virtual_tokens = 0
        self.call = NO_CALL
        # A prompt of one token has no position that an engine could tell anything of.
        nothing_to_come = params.prompt_logprobs is not None and len(prompt_token_ids) == 1
        self._prompt_logprobs: list[PositionLogprobs | None] | None = [None] if nothing_to_come else None

        self._ticket: Ticket | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def hold(self, ticket: Ticket) -> None:
        """Take what admission gave for this request, until it is retired."""
        ticket.correct(self.num_prompt_tokens)
        self._ticket = ticket

    def expire_after(self, delay_s: float, expire: Callable[[], None]) -> None:
        """Call `expire` in `delay_s` seconds, unless the request is retired before."""
        self._expiry = asyncio.get_running_loop().call_later(delay_s, expire)

    def retire(self) -> None:
        """Let go of what the request held: it has ended."""
        if self._ticket is not None:
            self._ticket.release()
        if self._expiry is not None:
            self._expiry.cancel()

    @property
    def finished(self) -> bool:
        """Whether all sequences are."""
        return self.num_unfinished == 0

    @property
    def finish_reasons(self) -> list[str | None]:
        """The finish reason of each sequence; None: it goes on."""
        return [sequence.finish_reason for sequence in self.sequences]

    @property
    def _num_cached_of_prompt(self) -> int | None:
        return None if self.num_cached_tokens is None else max(self.num_cached_tokens - self.num_virtual_tokens, 0)

    def add_sequence(self, sequence: Sequence) -> None:
        """Take one of the n sequences, at the start."""
        self.sequences.append(sequence)
        self.num_unfinished += 1

    def count_tokens(self, number: int, now: float) -> bool:
        """Note that tokens came, at a time of the wall clock; returns True for the first ones."""
        metrics = self.metrics
        metrics.num_generation_tokens += number
        metrics.last_token_time = now
        if metrics.first_token_time is not None:
            return False
        metrics.first_token_time = now
        if self._ticket is not None:
            self._ticket.leave_queue()
        return True

    def set_prompt_logprobs(self, positions: list[PositionLogprobs]) -> None:
        """Take the prompt's log-probabilities; all n sequences have the same, the first to come are kept."""
        if self._prompt_logprobs is None and self.params.prompt_logprobs is not None:
            # Nothing precedes the first token, so nothing is known of its probability.
            self._prompt_logprobs = [None, *positions]

    def deliver(self, sequence: Sequence) -> None:
        """Put what a sequence has to show on the collector."""
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
        if self.kind is RequestOutputKind.DELTA and prompt_logprobs is not None:
            self._prompt_logprobs = []
            prompt_logprobs = prompt_logprobs or None
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
            )
        )
