"""Log-probabilities in OpenAI's two forms: parallel lists for completions, objects for chats."""

from collections.abc import Sequence
from typing import Any

from tetrad.frontend.http.responses import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from tetrad.frontend.outputs import Logprob, PositionLogprobs

# JSON has no -inf; OpenAI sends this for impossible tokens.
_LEAST = -9999.0


def completion_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[PositionLogprobs | None],
    num_top: int,
    *,
    start: int,
    first_text: str = "",
) -> CompletionLogprobs:
    """Return the lists for some tokens.

    Args:
        token_ids: the tokens.
        positions: one per token; None where nothing is known (the first of a prompt).
        num_top: how many top candidates were asked for.
        start: characters of text before the first token.
        first_text: text of the token of which nothing else is known.
    """
    lists = CompletionLogprobs([], [], [], [])
    for token_id, position in zip(token_ids, positions, strict=True):
        lists.text_offset.append(start)
        if position is None:
            text = first_text
            lists.token_logprobs.append(None)
            lists.top_logprobs.append(None)
        else:
            text = _text(token_id, position[token_id])
            lists.token_logprobs.append(_finite(position[token_id].logprob))
            # The sampled token comes on top of the candidates asked for.
            kept = list(position.items())[: num_top + 1]
            lists.top_logprobs.append({_text(i, found): _finite(found.logprob) for i, found in kept})
        lists.tokens.append(text)
        start += len(text)
    return lists


def chat_logprobs(token_ids: Sequence[int], positions: Sequence[PositionLogprobs], num_top: int) -> ChatLogprobs:
    """Return the objects for some tokens, each with its `num_top` most likely candidates."""
    content = []
    for token_id, position in zip(token_ids, positions, strict=True):
        ranked = sorted(position.items(), key=lambda item: -item[1].logprob)[:num_top]
        tops = [TopLogprob(*_named(candidate, found)) for candidate, found in ranked]
        content.append(TokenLogprob(*_named(token_id, position[token_id]), tops))
    return ChatLogprobs(content)


def prompt_logprobs_json(positions: Sequence[PositionLogprobs | None]) -> list[dict[str, Any] | None]:
    """Return vLLM's form of a prompt's log-probabilities: token id -> facts."""
    return [
        None
        if position is None
        else {
            str(token_id): {"logprob": _finite(found.logprob), "rank": found.rank, "decoded_token": found.decoded_token}
            for token_id, found in position.items()
        }
        for position in positions
    ]


def _named(token_id: int, found: Logprob) -> tuple[str, float, list[int]]:
    text = _text(token_id, found)
    return text, _finite(found.logprob), list(text.encode())


def _text(token_id: int, found: Logprob) -> str:
    return f"token_id:{token_id}" if found.decoded_token is None else found.decoded_token


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
