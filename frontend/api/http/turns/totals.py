"""Turn totals: collects the token counts and the finish reason of a turn, for requests with one output."""

from dataclasses import dataclass

from tetrad.frontend.chat.turn_stream import TurnPart, TurnUpdate
from tetrad.services.errors import Unavailable


@dataclass(slots=True)
class TurnTotals:
    """The totals of a turn's updates.

    Attributes:
        prompt_tokens: number of tokens of the prompt.
        cached_tokens: number of prompt tokens found in the prefix cache.
        output_tokens: number of generated tokens.
        reasoning_tokens: number of generated tokens that are reasoning.
        finish_reason: finish reason of the turn; None until its end.
        stop_reason: the stop string or token id that ended the turn, if any.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, update: TurnUpdate) -> TurnPart:
        """Count an update and return its part of the turn.

        Raises:
            Unavailable: the turn was aborted, for example by an operator; its incomplete text is not returned as an answer.
        """
        [part] = update.parts
        self.prompt_tokens = len(update.output.prompt_token_ids)
        self.cached_tokens = update.output.num_cached_tokens or 0
        self.output_tokens += len(part.output.token_ids)
        self.reasoning_tokens += part.num_reasoning_tokens
        self.finish_reason = part.finish_reason
        self.stop_reason = part.output.stop_reason
        if part.finish_reason == "abort":
            raise Unavailable("The request was aborted before its end.", reason="ABORTED")
        return part
