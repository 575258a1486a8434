"""Prefilled: cached tokens and durations of a first phase, in which another engine core computed the prompt."""

from dataclasses import dataclass


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
