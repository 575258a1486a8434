"""Prediction: proposes the tokens of the text that a client expects as the output of its request.

One per request, made and called by LookupDrafts.
"""

from collections.abc import Sequence

from tetrad.services.predicted_text import PredictedText


class Prediction:
    """The predicted output of one request.

    Args:
        predicted_ids: the tokens of the text.
        num_prompt_tokens: number of tokens of the request before its output.
    """

    def __init__(self, predicted_ids: Sequence[int], num_prompt_tokens: int) -> None:
        self._text = PredictedText(predicted_ids)
        self._num_seen = num_prompt_tokens

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> Sequence[int]:
        """Return up to `num_tokens` tokens that may follow `token_ids`, which begin with those of the call before."""
        self._text.follow(token_ids[self._num_seen :])
        self._num_seen = len(token_ids)
        return self._text.expected(num_tokens)
