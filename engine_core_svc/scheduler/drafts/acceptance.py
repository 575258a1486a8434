"""Acceptance: estimates a proposer's acceptance rate for each request; the rate over all requests is the prior.

Proposals that no step verifies count as well: comparing them with the generated tokens costs nothing. So the estimate of a
request without drafts rises again when its text becomes predictable.
"""

from collections.abc import Sequence

_KEEP = 0.95
"""Factor by which each comparison lowers the weight of earlier ones."""
_PRIOR_WEIGHT = 2.0
"""Weight of the prior, as a number of comparisons."""
_FIRST_GUESS = 0.6
"""Value of the prior before any comparison."""
_PRIOR_GAIN = 0.02


class Prior:
    """Acceptance over all requests of an engine: the probability that a draft is right if those before it are right."""

    def __init__(self) -> None:
        self.probability = _FIRST_GUESS

    def note(self, num_right: int, num_compared: int) -> None:
        """Add a comparison of `num_compared` drafts, of which `num_right` were right."""
        self.probability += min(1.0, _PRIOR_GAIN * num_compared) * (num_right / num_compared - self.probability)


class Acceptance:
    """Acceptance of one request.

    Args:
        prior: acceptance over all requests of its engine.
    """

    __slots__ = ("_expected", "_num_compared", "_num_right", "_prior", "_start")

    def __init__(self, prior: Prior) -> None:
        self._prior = prior
        self._num_right = self._num_compared = 0.0
        self._expected: Sequence[int] = ()
        self._start = 0

    @property
    def probability(self) -> float:
        """The probability that a draft is right if those before it are right."""
        right = self._num_right + _PRIOR_WEIGHT * self._prior.probability
        return right / (self._num_compared + _PRIOR_WEIGHT)

    def expect(self, start: int, proposal: Sequence[int]) -> None:
        """Record a proposal for the positions from `start` on."""
        self._start, self._expected = start, proposal

    def compare(self, token_ids: Sequence[int]) -> None:
        """Compare the last proposal with the request's tokens."""
        num_compared, num_right = 0, 0
        for token_id, expected in zip(token_ids[self._start :], self._expected, strict=False):
            num_compared += 1
            if token_id != expected:
                break
            num_right += 1
        if num_compared:
            self._num_right = _KEEP * self._num_right + num_right
            self._num_compared = _KEEP * self._num_compared + num_compared
            self._prior.note(num_right, num_compared)
