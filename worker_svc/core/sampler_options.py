"""Sampler options: the settings of a model's sampler that hold for all of its requests.

Chosen when a model is loaded, and passed on to the sampler by the runners of all devices.
"""

import enum
from dataclasses import dataclass


class LogprobsMode(enum.StrEnum):
    """The values that a request gets as the log-probabilities of its tokens; names and meanings are vLLM's.

    Raw values are the model's, before any change. Processed values are those that a token is drawn from: after masks, biases,
    processors, penalties, and for tokens drawn at random after temperature, min_p, top_k and top_p. No processor changes the
    values of a prompt's own tokens, so in all modes they are raw.
    """

    RAW_LOGPROBS = "raw_logprobs"
    PROCESSED_LOGPROBS = "processed_logprobs"
    RAW_LOGITS = "raw_logits"
    PROCESSED_LOGITS = "processed_logits"

    @property
    def is_processed(self) -> bool:
        """Whether values of sampled tokens are those after the sampler's changes."""
        return self in (LogprobsMode.PROCESSED_LOGPROBS, LogprobsMode.PROCESSED_LOGITS)

    @property
    def has_logits(self) -> bool:
        """Whether the values are logits, not log-probabilities."""
        return self in (LogprobsMode.RAW_LOGITS, LogprobsMode.PROCESSED_LOGITS)


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    """The settings of a sampler.

    Attributes:
        processors: names and classes of the custom logits processors.
        logprobs_mode: the values that requests get as log-probabilities.
    """

    processors: tuple[tuple[str, type], ...] = ()
    logprobs_mode: LogprobsMode = LogprobsMode.RAW_LOGPROBS


DEFAULT_SAMPLER = SamplerOptions()
