"""Rate comparison: decides by measured rates whether a draft model makes steps faster, for each size of the batch.

A draft model's time is part of its steps and cannot be measured alone. So steps with and without drafts are tried, and the
faster kind is kept; 1.5% of the steps try the other kind again.
"""

from dataclasses import dataclass, field

_KEEP = 0.95
"""Weight of earlier steps when a step is added: about the last 20 steps count."""
_FIRST_STEPS = 8
"""Steps of each kind that are tried first."""
_PERIOD, _TRIED = 512, 8
"""Period in steps, and the number of its steps that are of the slower kind."""


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
class _Rates:
    """The rates of batches of about one size."""

    plain: _Rate = field(default_factory=_Rate)
    drafted: _Rate = field(default_factory=_Rate)
    num_steps: int = 0


class RateComparison:
    """The measured rates of steps with and without drafts."""

    def __init__(self) -> None:
        self._rates: dict[int, _Rates] = {}

    def note(self, num_requests: int, num_tokens: int, seconds: float, *, drafted: bool) -> None:
        """Learn from a step that yielded `num_tokens` tokens for `num_requests` requests."""
        rates = self._of(num_requests)
        (rates.drafted if drafted else rates.plain).add(num_tokens, seconds)
        rates.num_steps += 1

    def pays(self, num_requests: int) -> bool:
        """Return whether the next step of `num_requests` requests has drafts: because they pay, or to measure them."""
        rates = self._of(num_requests)
        if rates.plain.num_steps < _FIRST_STEPS:
            return False
        if rates.drafted.num_steps < _FIRST_STEPS:
            return True
        is_faster = rates.drafted.tokens_per_s > rates.plain.tokens_per_s
        return is_faster != (rates.num_steps % _PERIOD < _TRIED)

    def _of(self, num_requests: int) -> _Rates:
        return self._rates.setdefault(num_requests.bit_length(), _Rates())
