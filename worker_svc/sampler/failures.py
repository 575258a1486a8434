"""Failures: finds rows in which all tokens are masked, and rows whose logits are not finite. Each row fails alone."""

from collections.abc import Sequence

import numpy as np

from tetrad.services.errors import InternalError, InvalidRequest, TetradError
from tetrad.worker_svc.core.plan import Floats
from tetrad.worker_svc.sampler.processors import MASKED


def failures(largest: Floats) -> Sequence[tuple[int, TetradError]]:
    """Return the rows whose largest logit is not finite, and their errors."""
    return [(row, failure(float(largest[row]))) for row in np.flatnonzero(~np.isfinite(largest)).tolist()]


def with_errors(
    found: Sequence[tuple[int, TetradError]], errors: Sequence[tuple[int, TetradError]]
) -> Sequence[tuple[int, TetradError]]:
    """Return the rows and errors of both, by row; those of `errors` replace those of `found`."""
    return sorted({**dict(found), **dict(errors)}.items(), key=lambda each: each[0]) if errors else found


def failure(largest: float) -> TetradError:
    """Return the error of a row whose largest logit is this one, which is not finite."""
    if largest == MASKED:
        return InvalidRequest(
            "Nothing is left to sample: every token is excluded by the request's parameters (allowed_token_ids, bad_words, "
            "logit_bias, min_tokens, structured_outputs)."
        )
    return InternalError(f"The model's largest logit is {largest}; its weights, or their precision, do not fit this prompt.")
