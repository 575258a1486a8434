"""Rate comparison: decides by measured rates whether a draft model makes steps faster, for each size of the batch.

Steps with and without drafts are tried, and the faster kind is kept. Trials repeat, as texts and loads change: each trial waits
until the time that the one before it lost is a small share of the time since.
"""

from dataclasses import dataclass, field

_KEEP = 0.95
"""Weight of earlier steps when a step is added: about the last 20 steps count."""
_TRIAL_STEPS = 8
"""Steps of a trial, and of each kind at first."""
_PERIOD = 512
"""Minimum number of steps from one trial to the next."""
_TRIAL_SHARE = 0.015
"""Maximum of the time that a trial loses, as a share of the time until the next one."""


@dataclass(slots=True)
class _Rate:
    """Tokens and seconds of recent steps of one kind."""

    num_tokens: float = 0.0
    seconds: float = 0.0
    num_steps: int = 0

    def add(self, num_tokens: float, seconds: float) -> None:
        self.num_tokens = _KEEP * self.num_tokens + num_tokens
        self.seconds = _KEEP * self.seconds + seconds
        self.num_steps += 1

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class _Trial:
    """A trial of the slower kind of step, and the time after it.

    Attributes:
        drafted: the kind that is tried; None: the trial has ended.
        num_steps: steps since it began.
        seconds: duration of the steps since it began.
        lost_s: the time that its steps took beyond what the other kind takes for as many tokens.
    """

    drafted: bool | None = None
    num_steps: int = 0
    seconds: float = 0.0
    lost_s: float = 0.0

    def may_be_followed(self) -> bool:
        return self.drafted is None and self.num_steps >= _PERIOD and self.lost_s < _TRIAL_SHARE * self.seconds


@dataclass(slots=True)
class _Rates:
    """The rates of batches of about one size."""

    plain: _Rate = field(default_factory=_Rate)
    drafted: _Rate = field(default_factory=_Rate)
    trial: _Trial = field(default_factory=_Trial)

    @property
    def are_tried(self) -> bool:
        """Whether both kinds have been tried."""
        return min(self.plain.num_steps, self.drafted.num_steps) >= _TRIAL_STEPS

    @property
    def is_slower_with_drafts(self) -> bool:
        """Whether both kinds have been tried, and steps with drafts are the slower ones."""
        return self.are_tried and self.drafted.tokens_per_s <= self.plain.tokens_per_s

    def pays(self) -> bool:
        if self.plain.num_steps < _TRIAL_STEPS:
            return False
        if self.drafted.num_steps < _TRIAL_STEPS:
            return True
        if self.trial.drafted is not None:
            return self.trial.drafted
        return self.drafted.tokens_per_s > self.plain.tokens_per_s

    def note(self, num_tokens: float, seconds: float, *, drafted: bool) -> None:
        kind, other = (self.drafted, self.plain) if drafted else (self.plain, self.drafted)
        kind.add(num_tokens, seconds)
        trial = self.trial
        trial.num_steps += 1
        trial.seconds += seconds
        is_first = drafted and kind.num_steps <= _TRIAL_STEPS
        if (is_first or drafted == trial.drafted) and other.num_tokens:
            trial.lost_s += seconds - num_tokens / other.tokens_per_s
        if trial.num_steps >= _TRIAL_STEPS:
            trial.drafted = None
        if self.are_tried and trial.may_be_followed():
            self.trial = _Trial(drafted=not self.pays())


class RateComparison:
    """The measured rates of steps with and without drafts."""

    def __init__(self) -> None:
        self._rates: dict[int, _Rates] = {}
        self._usual_s = self._behind_s = 0.0

    def note(self, num_requests: int, num_tokens: int, seconds: float, *, drafted: bool, draft_s: float = 0.0) -> None:
        """Learn from a step that yielded `num_tokens` tokens for `num_requests` requests.

        Args:
            num_requests, num_tokens, seconds: see above.
            drafted: whether it verified drafts and asked for further ones.
            draft_s: the part of `seconds` in which the draft model computed.
        """
        if drafted:
            self._usual_s += (1 - _KEEP) * (draft_s - self._usual_s) if self._usual_s else draft_s
            seconds, self._behind_s = seconds + self._behind_s, 0.0
        self._of(num_requests).note(num_tokens, seconds, drafted=drafted)

    def note_behind(self, draft_s: float) -> None:
        """Add a step in which the draft model computed tokens that it lacked: of prompts, or of plain steps before.

        Its time beyond that of a usual step with drafts counts for the next of these.
        """
        self._behind_s += max(0.0, draft_s - self._usual_s)

    def pays(self, num_requests: int) -> bool:
        """Return whether the next step of `num_requests` requests has drafts: because they pay, or to measure them.

        Drafts that do not pay in batches of about half or twice this size are tried late: a draft model computes all prompts of
        the batch for its first trial, and batches pass through sizes that they keep for a few steps only.
        """
        rates, size = self._of(num_requests), num_requests.bit_length()
        near = [self._rates[other] for other in (size - 1, size + 1) if other in self._rates]
        is_new = rates.drafted.num_steps < _TRIAL_STEPS and rates.trial.num_steps < _PERIOD
        if is_new and any(other.is_slower_with_drafts for other in near):
            return False
        return rates.pays()

    def _of(self, num_requests: int) -> _Rates:
        return self._rates.setdefault(num_requests.bit_length(), _Rates())
