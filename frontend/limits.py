"""Limits: what is refused before anything is scheduled, and how open-ended parameters are closed.

Asked on every request. Combines the server's caps (settings) with the model's facts (context, vocabulary).
"""

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest, PromptTooLong


class Limits:
    """The limits of one server with one model.

    Args:
        settings: the server's caps.
        max_model_len: longest prompt plus output, in tokens.
        vocab_size: ids are smaller than this.
    """

    def __init__(self, settings: FrontendSettings, *, max_model_len: int, vocab_size: int) -> None:
        self._settings = settings
        self._vocab_size = vocab_size
        self.max_model_len = max_model_len

    def check_text(self, text: str, *, truncated: bool = False) -> None:
        """Refuse a text that is empty, or too long to fit however well it tokenizes; trying would only cost time."""
        if not text:
            raise InvalidRequest("The decoder prompt cannot be empty", field="prompt")
        if not truncated:
            self.check_num_chars(len(text))

    def check_num_chars(self, number: int) -> None:
        """Refuse a text of so many characters if it cannot fit."""
        most = self.max_model_len * self._settings.max_chars_per_token
        if number > most:
            raise PromptTooLong(
                f"The prompt has {number} characters, but at most {most} can fit the maximum model length of "
                f"{self.max_model_len} tokens. Please reduce the length of the input prompt.",
                field="prompt",
            )

    def check_prompt(self, ids: list[int]) -> None:
        """Refuse a prompt that is empty, has unknown ids, or leaves no room for one token."""
        if not ids:
            raise InvalidRequest("The decoder prompt cannot be empty", field="prompt")
        limit = self.max_model_len
        if len(ids) > limit:
            raise PromptTooLong(
                f"The decoder prompt (length {len(ids)}) is longer than the maximum model length of {limit}. "
                "Please reduce the length of the input prompt.",
                field="prompt",
            )
        if len(ids) == limit:
            raise PromptTooLong(
                f"The decoder prompt (length {len(ids)}) plus the number of requested output tokens (at least 1) is longer "
                f"than the maximum model length of {limit}. Please reduce the length of the input prompt.",
                field="prompt",
            )
        if max(ids) >= self._vocab_size or min(ids) < 0:
            wrong = next(i for i in ids if not 0 <= i < self._vocab_size)
            text = f"Token id {wrong} in the prompt is out of vocabulary. Vocabulary size: {self._vocab_size}"
            raise InvalidRequest(text, field="prompt")

    def check_params(self, params: SamplingParams, *, max_logprobs: int | None = None) -> None:
        """Refuse sampling parameters beyond the server's caps or the model's vocabulary; `max_logprobs` replaces that cap."""
        caps = self._settings
        most_logprobs = caps.max_logprobs if max_logprobs is None else max_logprobs
        if params.n > caps.max_n:
            raise InvalidRequest(f"n must be at most {caps.max_n}, got {params.n}.", field="n")
        if not params.logprob_token_ids:
            self._check_logprobs("logprobs", "sample", params.logprobs, most_logprobs)
        self._check_logprobs("prompt_logprobs", "prompt", params.prompt_logprobs, most_logprobs)
        if len(params.stops) > caps.max_stop_strings:
            text = f"stop may hold at most {caps.max_stop_strings} strings, got {len(params.stops)}."
            raise InvalidRequest(text, field="stop")
        longest = max((len(stop) for stop in params.stops), default=0)
        if longest > caps.max_stop_chars:
            text = f"A stop string may have at most {caps.max_stop_chars} characters, got {longest}."
            raise InvalidRequest(text, field="stop")
        if params.bad_words and len(params.bad_words) > caps.max_bad_words:
            text = f"bad_words may hold at most {caps.max_bad_words} words, got {len(params.bad_words)}."
            raise InvalidRequest(text, field="bad_words")
        for name in ("logit_bias", "stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            self._check_ids(name, getattr(params, name))

    def resolve_max_tokens(self, params: SamplingParams, num_prompt_tokens: int) -> int:
        """Return how many tokens may be generated: what was asked for, within the context."""
        room = self.max_model_len - num_prompt_tokens
        return room if params.max_tokens is None else min(params.max_tokens, room)

    def _check_logprobs(self, name: str, kind: str, asked: int | None, most: int) -> None:
        if asked is None:
            return
        most = self._vocab_size if most == -1 else most
        number = self._vocab_size if asked == -1 else asked
        if number > most:
            text = f"Requested {kind} logprobs of {number}, which is greater than max allowed: {most}"
            raise InvalidRequest(text, field=name)

    def _check_ids(self, name: str, ids: list[int] | dict[int, float] | None) -> None:
        wrong = [i for i in ids or () if i >= self._vocab_size]
        if wrong:
            text = f"token_id(s) {wrong[:8]} in {name} contain out-of-vocab token ids. Vocabulary size: {self._vocab_size}"
            raise InvalidRequest(text, field=name)
