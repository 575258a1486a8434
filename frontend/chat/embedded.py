"""Embedded parts: puts prompt embeddings at the places of their message parts in a rendered conversation.

A part is rendered as a mark. The texts between marks are encoded separately, like the texts on both sides of a special token;
the marks themselves are never encoded.
"""

from collections.abc import Sequence

from tetrad.frontend.llm.tokenization import Texts
from tetrad.frontend.request.prompt_embeds import PromptEmbeds, among_tokens
from tetrad.frontend.request.prompts import EmbedsPrompt
from tetrad.services.errors import InvalidRequest


def mark_of(place: int) -> str:
    """Return the mark that represents the embeddings with this index in messages."""
    return f"<prompt_embeds_{place}>"


async def prompt_with_embeds(texts: Texts, rendered: str, embeds: Sequence[PromptEmbeds]) -> EmbedsPrompt:
    """Return the prompt of a rendered conversation with marks.

    Args:
        texts: encodes the texts between the marks.
        rendered: the rendered conversation.
        embeds: the embeddings of the marks, in order; at least one.

    Raises:
        InvalidRequest: a mark is missing, repeated or out of order, a message contains one, or rows differ in size.
    """
    pieces, rest = [], rendered
    for place in range(len(embeds)):
        before, mark, rest = rest.partition(mark_of(place))
        if not mark or mark_of(place) in rest:
            raise InvalidRequest(
                f"`prompt_embeds`: {mark_of(place)}, which stands for part {place}, must be in the rendered conversation once "
                "and in order. No text may hold it, and the chat template must write each content once.",
                field="messages",
            )
        pieces.append(before)
    ids = await texts.encode_pieces([*pieces, rest])
    prompt_token_ids, whole = among_tokens(ids, embeds)
    return EmbedsPrompt(prompt=rendered, prompt_embeds=whole, prompt_token_ids=prompt_token_ids)
