"""PrefillThrottle: limits the prompt tokens of a step while other requests decode.

Called by the scheduler for each plan and each result. A prompt of thousands of tokens in one step delays every stream for the
whole step; cut into small chunks it takes the same time in all and delays each step only a little. The right chunk size depends
on model and machine, so step times are measured. Knows no requests; reads no clock.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

_MIN_TOKENS = 8
"""Minimum number of prompt tokens per step, even where they take longer than the slowdown allows."""
_UNNOTICED_S = 0.025
"""Duration of a step, in seconds, up to which a reader notices no delay."""
_URGENCY = 4
"""Weight of a request that waits for its first token, relative to a request that decodes."""
_PROBE_EVERY = 16
"""Number of limited steps of which one has nearly no prompt, so that the time of decodes alone stays measured."""
_LONGEST_S = 3600.0
"""Maximum credible duration of a step, in seconds; a worker's report of a longer one is ignored."""
_GAIN = 0.3
"""Weight of the newest step in the estimated times."""
_MAX_RISE = 1.25
"""Maximum of a step's time, relative to the estimate; a longer step counts as this, since the machine was probably busy."""
_MIN_PROMPT = 64
"""Minimum number of tokens of a step without decodes that measures the cost of a token; with fewer, fixed costs dominate."""


class PrefillThrottle(Protocol):
    """The interface of a throttle for the scheduler."""

    def prompt_tokens(self, num_decoding: int, num_waiting: int) -> int | None:
        """Return how many tokens of prompts the next step may have; None: no limit beyond that of the step.

        Args:
            num_decoding: number of requests whose next token each prompt token delays.
            num_waiting: number of requests whose prompts are not computed yet.
        """

    def note_planned(self, step_id: int, num_decodes: int, num_prompt_tokens: int) -> None:
        """Note that a step with these numbers of tokens was planned."""

    def note_returned(self, step_id: int, compute_s: float) -> None:
        """Note that the result of a step has arrived, which took `compute_s` seconds on the device."""

    def forget_steps(self) -> None:
        """Forget all steps in flight: the worker is lost."""


class NoThrottle:
    """Limits no step: prompts fill it, as in vLLM."""

    def prompt_tokens(self, num_decoding: int, num_waiting: int) -> int | None:
        """Return None: no limit."""

    def note_planned(self, step_id: int, num_decodes: int, num_prompt_tokens: int) -> None:
        """Do nothing."""

    def note_returned(self, step_id: int, compute_s: float) -> None:
        """Do nothing."""

    def forget_steps(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class _Planned:
    step_id: int
    num_decodes: int
    num_prompt_tokens: int


class MeasuringThrottle:
    """Limits the duration of a step with decodes to a multiple of its duration without prompts.

    Args:
        max_slowdown: the multiple, above 1. Where many requests wait for their prompts and few decode, the time for prompts
            grows with the ratio of their numbers: many new prompts start together instead of one after the other.
    """

    def __init__(self, max_slowdown: float) -> None:
        self._share = max_slowdown - 1
        self._times = StepTimes()
        self._planned: deque[_Planned] = deque()
        self._num_paced = 0

    def prompt_tokens(self, num_decoding: int, num_waiting: int) -> int | None:
        """Return the prompt tokens that fit the extra time of this step; None if no request decodes or no time is known yet."""
        decode_s, token_s = self._times.decode_s, self._times.token_s
        if not num_decoding or not num_waiting or not decode_s or not token_s:
            return None
        self._num_paced += 1
        if self._num_paced % _PROBE_EVERY == 0:
            return 1
        seconds = self._share * decode_s * max(1.0, _URGENCY * num_waiting / num_decoding)
        return max(_MIN_TOKENS, int(max(seconds, _UNNOTICED_S - decode_s) / token_s))

    def note_planned(self, step_id: int, num_decodes: int, num_prompt_tokens: int) -> None:
        """Remember the token counts of a step until its result arrives."""
        self._planned.append(_Planned(step_id, num_decodes, num_prompt_tokens))

    def note_returned(self, step_id: int, compute_s: float) -> None:
        """Learn from a step's duration; one that is missing or not credible is ignored."""
        while self._planned and self._planned[0].step_id <= step_id:
            planned = self._planned.popleft()
            if planned.step_id == step_id and 0 < compute_s < _LONGEST_S:
                self._times.observe(planned.num_decodes, planned.num_prompt_tokens, compute_s)

    def forget_steps(self) -> None:
        """Forget the steps in flight; keep the estimates, since the next worker is most likely of the same kind."""
        self._planned.clear()


class StepTimes:
    """Estimated times in seconds; 0 until steps have been measured.

    Attributes:
        decode_s: time of a step that has only decodes.
        token_s: time of each prompt token beside decodes, including its share of the fixed cost of having any.
    """

    def __init__(self) -> None:
        self.decode_s = 0.0
        self.token_s = 0.0
        self._has_seen_both = False

    def observe(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """Learn from the duration of a step; one without tokens, which only moves blocks, says nothing."""
        if not num_decodes + num_prompt_tokens:
            return
        if num_decodes and num_prompt_tokens <= 1:
            self.decode_s = _moved(self.decode_s, seconds)
        elif num_decodes:
            self.decode_s = self.decode_s or max(seconds - self.token_s * num_prompt_tokens, 0.1 * seconds)
            self.token_s = _moved(self.token_s, max(seconds - self.decode_s, 0.1 * seconds) / num_prompt_tokens)
            self._has_seen_both = True
        elif not self._has_seen_both and (num_prompt_tokens >= _MIN_PROMPT or not self.token_s):
            self.token_s = _moved(self.token_s, seconds / num_prompt_tokens)


def _moved(known: float, seen: float) -> float:
    if not known:
        return seen
    return known + _GAIN * (min(seen, _MAX_RISE * known) - known)
