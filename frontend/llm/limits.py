"""Limits: refuses requests beyond the limits before they are scheduled, and limits max_tokens to the context.

Checked for every request. Combines the server's limits (settings) with the model's (context, vocabulary).
"""

from typing import Protocol

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.request.prompt_scores import PARAMETER, rows_of, width_of
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.services.errors import InvalidRequest, PromptTooLong
from tetrad.services.message_size import too_large
from tetrad.services.rpc.columns import U32_BYTES

_REST_OF_OUTPUT_BYTES = 1024
"""Estimated bytes of an output besides its log-probabilities."""

_FEW_LOGPROBS = 128
"""Log-probabilities per token that answers of any length may have: so few cost less than the tokens themselves."""


class Context(Protocol):
    """The source of the limit of a sequence's length."""

    @property
    def max_model_len(self) -> int:
        """The largest length of prompt plus output, in tokens, that every engine core accepts."""


class Limits:
    """The limits of one server with one model.

    Args:
        settings: the server's limits.
        context: gives the present limit of prompt plus output, which changes when engine cores are added or removed.
        vocab_size: token ids must be smaller than this.
    """

    def __init__(self, settings: FrontendSettings, *, context: Context, vocab_size: int) -> None:
        self._settings, self._context = settings, context
        self._vocab_size = vocab_size

    @property
    def max_model_len(self) -> int:
        """The largest length of prompt plus output, in tokens."""
        return self._context.max_model_len

    @property
    def max_prompt_chars(self) -> int:
        """The largest length of a text to be tokenized, in characters; no longer text can fit the context."""
        return self.max_model_len * self._settings.max_chars_per_token

    def check_text(self, text: str, *, field: str = "prompt", longest: int | None = None, is_truncated: bool = False) -> None:
        """Refuse an empty text, or one that is too long.

        Args:
            text: the text.
            field: the request's field with the text, for errors.
            longest: maximum number of its tokens; None: the context's length.
            is_truncated: whether only some of its tokens are kept. The tokenizer has to read all of such a text, and alone
                limits its length.
        """
        if not text:
            raise InvalidRequest("The decoder prompt cannot be empty", field=field)
        if not is_truncated:
            self.check_num_chars(len(text), field=field, longest=longest)

    def check_num_chars(self, number: int, *, field: str = "prompt", longest: int | None = None) -> None:
        """Refuse a text of `number` characters if so many cannot fit; `longest`, in tokens, replaces the context's length."""
        limit = longest or self.max_model_len
        most = limit * self._settings.max_chars_per_token
        if number > most:
            raise PromptTooLong(
                f"This model's maximum context length is {limit} tokens. However, you requested more tokens "
                f"(the prompt has {number} characters, but at most {most} can fit). Please reduce the length of the prompt.",
                field=field,
            )

    def check_prompt(
        self, ids: list[int], *, num_new_tokens: int = 1, longest: int | None = None, vocab_size: int | None = None
    ) -> None:
        """Refuse a prompt that is empty, has unknown ids, or leaves no room for `num_new_tokens`.

        `longest`, in tokens, replaces the context's length; `vocab_size` that of texts, for prompts with what a model wrote.
        """
        if not ids:
            raise InvalidRequest("The decoder prompt cannot be empty", field="prompt")
        limit = longest or self.max_model_len
        if len(ids) + num_new_tokens > limit:
            raise PromptTooLong.of_tokens(len(ids), limit, generates=num_new_tokens > 0, field="prompt")
        vocab_size = vocab_size or self._vocab_size
        if max(ids) >= vocab_size or min(ids) < 0:
            wrong = next(i for i in ids if not 0 <= i < vocab_size)
            text = f"Token id {wrong} in the prompt is out of vocabulary. Vocabulary size: {vocab_size}"
            raise InvalidRequest(text, field="prompt")

    def check_params(self, params: SamplingParams, *, max_logprobs: int | None = None) -> None:
        """Refuse parameters beyond the server's limits or the model's vocabulary; `max_logprobs` replaces the setting."""
        caps = self._settings
        most_logprobs = caps.max_logprobs if max_logprobs is None else max_logprobs
        if params.n > caps.max_n:
            raise InvalidRequest(f"n must be at most {caps.max_n}, got {params.n}.", field="n")
        if not params.logprob_token_ids:
            self._check_logprobs("logprobs", "sample", params.logprobs, most_logprobs)
        self._check_logprobs("prompt_logprobs", "prompt", params.prompt_logprobs, most_logprobs)
        if (scored := params.prompt_logprob_token_ids) is not None:
            self._check_logprobs(PARAMETER, "prompt", width_of(scored), most_logprobs)
            for row in rows_of(scored):
                self._check_ids(PARAMETER, row)
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
        longest = max((len(word) for word in params.bad_words or ()), default=0)
        if longest > caps.max_bad_word_chars:
            text = f"A bad word may have at most {caps.max_bad_word_chars} characters, got {longest}."
            raise InvalidRequest(text, field="bad_words")
        for name in ("logit_bias", "stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
            self._check_ids(name, getattr(params, name))

    def check_logprob_columns(self, params: SamplingParams, num_prompt_tokens: int) -> None:
        """Refuse log-probabilities that do not fit one message from the engine core.

        The first message has the log-probabilities of the prompt and of a new token.
        """
        sizes = {
            "logprobs": self._column_bytes(params.logprobs),
            "prompt_logprobs": self._column_bytes(params.prompt_logprobs) * num_prompt_tokens,
            PARAMETER: U32_BYTES * self._num_scored(params) * num_prompt_tokens,
        }
        num_bytes, limit = sum(sizes.values()) + _REST_OF_OUTPUT_BYTES, self._settings.max_message_bytes
        if num_bytes > limit:
            name = max(sizes, key=lambda name: sizes[name])
            shown = self._num_scored(params) if name == PARAMETER else getattr(params, name)
            what = f"{name}={shown} with a prompt of {num_prompt_tokens} tokens"
            raise too_large(what, num_bytes, limit, field=name)

    def resolve_max_tokens(self, params: SamplingParams, num_prompt_tokens: int) -> int:
        """Return the maximum number of tokens to generate: the request's max_tokens, limited to the context."""
        room = self.max_model_len - num_prompt_tokens
        return room if params.max_tokens is None else min(params.max_tokens, room)

    def check_answer_logprobs(self, params: SamplingParams, *, num_prompt_tokens: int, max_tokens: int) -> None:
        """Refuse an answer with too many log-probabilities: writing it would delay all other requests' tokens."""
        of_output = params.n * max_tokens * self._many_logprobs(params.logprobs)
        of_prompt = (num_prompt_tokens - 1) * self._many_logprobs(params.prompt_logprobs)
        number, most = of_output + of_prompt, self._settings.max_answer_logprobs
        if number > most > 0:
            raise InvalidRequest(
                f"The answer would have {number} log-probabilities ({params.n} x {max_tokens} output tokens, "
                f"{num_prompt_tokens} prompt tokens); the limit is {most} for more than {_FEW_LOGPROBS} a token. "
                "Ask for fewer, or set max_tokens.",
                field="logprobs" if of_output > of_prompt else "prompt_logprobs",
            )

    @staticmethod
    def _num_scored(params: SamplingParams) -> int:
        """Return the number of ids that are scored at each position of the prompt."""
        return 0 if params.prompt_logprob_token_ids is None else width_of(params.prompt_logprob_token_ids)

    def _many_logprobs(self, asked: int | None) -> int:
        """Return the number of log-probabilities per token; 0 if there are so few that they need no limit."""
        number = self._vocab_size if asked == -1 else asked or 0
        return number if number > _FEW_LOGPROBS else 0

    def _check_logprobs(self, name: str, kind: str, asked: int | None, most: int) -> None:
        if asked is None:
            return
        most = self._vocab_size if most == -1 else most
        number = self._vocab_size if asked == -1 else asked
        if number > most:
            text = f"Requested {kind} logprobs of {number}, which is greater than max allowed: {most}"
            raise InvalidRequest(text, field=name)

    def _column_bytes(self, number: int | None) -> int:
        """Return the size in bytes of one position's log-probabilities: an id and a value for each candidate, and a rank."""
        if number is None:
            return 0
        width = 1 + (self._vocab_size if number == -1 else number)
        return U32_BYTES * (2 * width + 1)

    def _check_ids(self, name: str, ids: list[int] | dict[int, float] | None) -> None:
        wrong = [i for i in ids or () if i >= self._vocab_size]
        if wrong:
            text = f"token_id(s) {wrong[:8]} in {name} contain out-of-vocab token ids. Vocabulary size: {self._vocab_size}"
            raise InvalidRequest(text, field=name)
