"""Prompt scores: log-probabilities of given ids at positions of a prompt, as the teacher of a distillation returns them.

Checks the ids that a request names, and holds the scores that an engine core brings. The function that makes an array imports
numpy: most frontends never need it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tetrad.frontend.request.sampling_values import wrong
from tetrad.services.errors import InvalidRequest

if TYPE_CHECKING:
    import numpy as np

PARAMETER = "prompt_logprob_token_ids"
START = "prompt_logprob_start"
NO_ID = -1
"""Stands for no id; its score is -inf."""
_MAX_U32 = 2**32 - 1

ScoreIds = list[int] | list[list[int]]
"""The ids of all rows, or those of each row."""


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Scores in float32, little-endian, row by row; there are num_rows x width."""

    scores: bytes
    num_rows: int
    width: int

    def to_array(self) -> "np.ndarray":
        """Return the scores [num_rows, width] float32."""
        import numpy as np

        return np.frombuffer(self.scores, "<f4").reshape(self.num_rows, self.width).astype(np.float32)


def score_ids(value: Any) -> ScoreIds:
    """Return the ids as lists; InvalidRequest for anything but ids, or rows of ids. An integer array is taken, too."""
    given = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(given, list | tuple) or not given:
        raise wrong(PARAMETER, f"{PARAMETER} must be ids, or one list of ids for each scored row, and not be empty.")
    if not any(isinstance(each, list | tuple) for each in given):
        return _ids(given)
    return [_ids(row) for row in given]


def _ids(row: Any) -> list[int]:
    if not isinstance(row, list | tuple):
        raise wrong(PARAMETER, f"{PARAMETER} must have only ids, or only lists of ids, got {row!r} among lists.")
    for each in row:
        if isinstance(each, bool) or not isinstance(each, int):
            raise wrong(PARAMETER, f"{PARAMETER} must contain only integers, got {each!r}.")
        if not NO_ID <= each < _MAX_U32:
            raise wrong(PARAMETER, f"{PARAMETER} must contain ids of the vocabulary, or -1 for none, got {each}.")
    return list(row)


def rows_of(ids: ScoreIds) -> Sequence[list[int]]:
    """Return the rows; ids of all rows are one."""
    return [row for row in ids if isinstance(row, list)] or [[each for each in ids if isinstance(each, int)]]


def width_of(ids: ScoreIds) -> int:
    """Return the number of ids of the longest row, at least 1."""
    return max(1, *map(len, rows_of(ids)))


def check_rows(ids: ScoreIds | None, start: int, num_prompt_tokens: int) -> None:
    """Raise InvalidRequest if the rows do not fit a prompt of this length: one follows each token from `start` on."""
    if ids is None:
        return
    num_rows = num_prompt_tokens - 1 - start
    if num_rows < 1:
        text = f"{START}={start} leaves no token to score: the prompt has {num_prompt_tokens} tokens, so it must be at most "
        raise InvalidRequest(f"{text}{num_prompt_tokens - 2}.", field=START)
    if isinstance(ids[0], list) and len(ids) != num_rows:
        raise InvalidRequest(
            f"{PARAMETER} has {len(ids)} rows, but {num_rows} tokens of the prompt follow {START}={start}.", field=PARAMETER
        )
