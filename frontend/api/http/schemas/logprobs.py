"""Log-probabilities: converts them to OpenAI's two forms: parallel lists for completions, objects for chats."""

from collections.abc import Sequence
from functools import partial
from itertools import islice

from tetrad.frontend.api.http.schemas.large_parts import LargeParts
from tetrad.frontend.api.http.schemas.objects import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TokenLogprob,
    TopLogprob,
)
from tetrad.frontend.request.logprobs import PARTIAL
from tetrad.frontend.request.outputs import Logprob, PositionLogprobs

# JSON has no -inf; OpenAI sends this value for impossible tokens.
_LEAST = -9999.0


def completion_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[PositionLogprobs | None],
    num_top: int,
    *,
    start: int,
    first_text: str = "",
    as_ids: bool = False,
    parts: LargeParts,
) -> CompletionLogprobs:
    """Return the lists of some tokens.

    Args:
        token_ids: the tokens.
        positions: one per token; None for a token without log-probabilities (the first of a prompt).
        num_top: requested number of top candidates.
        start: number of characters of text before the first token; below 0: number of the first characters that are not text.
        first_text: text of a token without log-probabilities.
        as_ids: whether tokens are written as `token_id:5`.
        parts: the large parts of the answer, which long lists are added to.
    """
    lists = CompletionLogprobs([], [], [], [])
    for token_id, position in zip(token_ids, positions, strict=True):
        lists.text_offset.append(max(start, 0))
        if position is None:
            text = first_text
            lists.token_logprobs.append(None)
            lists.top_logprobs.append(None)
        else:
            text = _text(token_id, position[token_id])
            lists.token_logprobs.append(_finite(position[token_id].logprob))
            # The sampled token is returned in addition to the requested candidates.
            kept = islice(position.items(), num_top + 1)
            tops = {_shown(i, found, as_ids=as_ids): _finite(found.logprob) for i, found in kept}
            lists.top_logprobs.append(parts.mapping_of(tops))
        lists.tokens.append(_id_text(token_id) if as_ids else text)
        start += len(text)
    lists.top_logprobs = parts.list_of(lists.top_logprobs, num_top)
    return lists


def num_chars(token_ids: Sequence[int], positions: Sequence[PositionLogprobs]) -> int:
    """Return the number of characters of some tokens' texts."""
    return sum(len(_text(token_id, position[token_id])) for token_id, position in zip(token_ids, positions, strict=True))


def chat_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[PositionLogprobs],
    num_top: int,
    *,
    as_ids: bool = False,
    parts: LargeParts,
) -> ChatLogprobs:
    """Return the object of some tokens. Arguments: see `completion_logprobs`."""
    return ChatLogprobs(parts.list_of(token_logprobs(token_ids, positions, num_top, as_ids=as_ids, parts=parts), num_top))


def token_logprobs(
    token_ids: Sequence[int],
    positions: Sequence[PositionLogprobs],
    num_top: int,
    *,
    as_ids: bool = False,
    parts: LargeParts,
) -> list[TokenLogprob]:
    """Return one object per token, with its `num_top` most likely candidates. Arguments: see `completion_logprobs`."""
    content: list[TokenLogprob] = []
    for token_id, position in zip(token_ids, positions, strict=True):
        found = position[token_id]
        name, text = _shown(token_id, found, as_ids=as_ids), _text(token_id, found)
        tops = parts.list_made(_ranked(position, num_top), partial(_top, position, as_ids=as_ids))
        content.append(TokenLogprob(name, _finite(found.logprob), list(text.encode()), tops))
    return content


def prompt_logprobs_json(positions: Sequence[PositionLogprobs | None], parts: LargeParts) -> PromptLogprobs:
    """Return vLLM's form of a prompt's log-probabilities: token id -> facts; long parts are added to `parts`."""
    shown = [None if position is None else parts.mapping_of(_prompt_position(position)) for position in positions]
    return parts.list_of(shown, max(map(len, filter(None, positions)), default=0))


def _prompt_position(position: PositionLogprobs) -> dict[str, PromptLogprob]:
    return {
        str(token_id): PromptLogprob(_finite(found.logprob), found.rank, found.decoded_token)
        for token_id, found in position.items()
    }


def _ranked(position: PositionLogprobs, number: int) -> list[int]:
    """Return the most likely tokens, likeliest first. Tuples of tokens and values would be visited by the garbage collector."""
    return sorted(position, key=lambda token_id: -position[token_id].logprob)[:number]


def _top(position: PositionLogprobs, token_id: int, *, as_ids: bool) -> TopLogprob:
    found = position[token_id]
    return TopLogprob(_shown(token_id, found, as_ids=as_ids), _finite(found.logprob), _bytes(token_id, found))


def _bytes(token_id: int, found: Logprob) -> list[int] | None:
    """Return a candidate's bytes; None for a part of a character, because its text does not determine the bytes."""
    text = _text(token_id, found)
    return None if PARTIAL in text else list(text.encode())


def _shown(token_id: int, found: Logprob, *, as_ids: bool) -> str:
    return _id_text(token_id) if as_ids else _text(token_id, found)


def _text(token_id: int, found: Logprob) -> str:
    return _id_text(token_id) if found.decoded_token is None else found.decoded_token


def _id_text(token_id: int) -> str:
    return f"token_id:{token_id}"


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST)
