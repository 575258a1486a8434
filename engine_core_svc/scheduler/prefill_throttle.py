"""PrefillThrottle: limits the prompt tokens of a step while other requests decode.

Called by the scheduler for each plan and each result. A prompt of thousands of tokens in one step delays every stream for the
whole step; cut into small chunks it costs the same and delays each step only a little. The chunk size depends on model and
machine, so step times are measured. Knows no requests; reads no clock.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from tetrad.engine_core_svc.scheduler.step_times import StepTimes

_MIN_TOKENS = 8
"""Prompts go on even where a few of their tokens take longer than that."""
_UNNOTICED_S = 0.025
"""No reader is held up by steps of this length."""
_URGENCY = 4
"""Requests that decode, as many of which a request that waits for its first token outweighs."""
_PROBE_EVERY = 16
"""Paced steps of which one has nearly no prompt, so that it stays known what decodes take alone."""
_LONGEST_S = 3600.0
"""No step takes longer; a worker that says so is not believed."""


class PrefillThrottle(Protocol):
    """The interface of a throttle for the scheduler."""

    def prompt_tokens(self, num_decoding: int, num_waiting: int) -> int | None:
        """Return how many tokens of prompts the next step may have; None: as many as fit it.

        Args:
            num_decoding: requests whose next token every such token holds up.
            num_waiting: requests whose prompts are not computed yet.
        """

    def note_planned(self, step_id: int, num_decodes: int, num_prompt_tokens: int) -> None:
        """A step with so many tokens is on its way."""

    def note_returned(self, step_id: int, compute_s: float) -> None:
        """A step is back and took so many seconds on the device."""

    def forget_steps(self) -> None:
        """The steps on their way will not come back."""


class NoThrottle:
    """Prompts fill every step, as in vLLM."""

    def prompt_tokens(self, num_decoding: int, num_waiting: int) -> int | None:
        """As many as fit."""

    def note_planned(self, step_id: int, num_decodes: int, num_prompt_tokens: int) -> None:
        """Not needed."""

    def note_returned(self, step_id: int, compute_s: float) -> None:
        """Not needed."""

    def forget_steps(self) -> None:
        """Not needed."""


@dataclass(frozen=True, slots=True)
class _Planned:
    step_id: int
    num_decodes: int
    num_prompt_tokens: int


class MeasuringThrottle:
    """Holds a step with decodes to a multiple of what it takes without prompts.

    Args:
        max_slowdown: that multiple, above 1. Where many wait for their prompts and few decode, the time for prompts grows with
            their ratio: many new prompts start together instead of one by one behind the first ones.
    """

    def __init__(self, max_slowdown: float) -> None:
        self._share = max_slowdown - 1
        self._times = StepTimes()
        self._planned: deque[_Planned] = deque()
        self._num_paced = 0

    def prompt_tokens(self, num_decoding: int, num_waiting: int) -> int | None:
        """Return the prompt tokens that fit the extra time of this step; None if nothing decodes or nothing is known yet."""
        decode_s, token_s = self._times.decode_s, self._times.token_s
        if not num_decoding or not num_waiting or not decode_s or not token_s:
            return None
        self._num_paced += 1
        if self._num_paced % _PROBE_EVERY == 0:
            return 1
        seconds = self._share * decode_s * max(1.0, _URGENCY * num_waiting / num_decoding)
        return max(_MIN_TOKENS, int(max(seconds, _UNNOTICED_S - decode_s) / token_s))

    def note_planned(self, step_id: int, num_decodes: int, num_prompt_tokens: int) -> None:
        """Remember what a step has until it is back."""
        self._planned.append(_Planned(step_id, num_decodes, num_prompt_tokens))

    def note_returned(self, step_id: int, compute_s: float) -> None:
        """Learn from a step; one that does not say how long it took, or nonsense, teaches nothing."""
        while self._planned and self._planned[0].step_id <= step_id:
            planned = self._planned.popleft()
            if planned.step_id == step_id and 0 < compute_s < _LONGEST_S:
                self._times.observe(planned.num_decodes, planned.num_prompt_tokens, compute_s)

    def forget_steps(self) -> None:
        """Keep the estimates: the next worker is most likely of the same kind."""
        self._planned.clear()
