"""Positions of a prompt with images on the axes time, height and width, for models with M-RoPE.

Text counts on all axes alike. The embeddings of an image begin at the position of the text before it: the axes count its
frames, rows and columns. Text after an image continues at its largest position plus one, so tokens behind the last image
have their index plus a constant. Source: get_rope_index of transformers' Qwen2-VL, Qwen2.5-VL, Qwen3-VL and GLM-4V.
"""

from collections.abc import Sequence

import numpy as np

from tetrad.worker_svc.core.plan import Ints, MediaSpan


class PromptAxes:
    """The positions of one request's tokens on three axes.

    Args:
        spans: the prompt's images, by ascending offset; each has a grid of as many places as it has embeddings.

    Attributes:
        delta: position of a token behind the last image, minus its index.
    """

    def __init__(self, spans: Sequence[MediaSpan]) -> None:
        parts: list[Ints] = [np.empty((3, 0), np.int64)]
        index = position = 0
        for span in spans:
            assert span.grid is not None, "checked when the request was added"
            first, end = _embedded(span)
            parts.append(_text(position, first - index))
            position += first - index
            grid = np.indices(span.grid).reshape(3, -1) + position
            parts.append(grid)
            # transformers adds the larger one of rows and columns: the frames of an image are at one position in time.
            position += max(span.grid[1:])
            index = end
        self._known: Ints = np.concatenate(parts, axis=1)
        self.delta = position - index

    def of(self, start: int, count: int) -> Ints:
        """Return the positions [3, count] of the tokens from index `start` on."""
        known = self._known[:, start : start + count]
        rest = count - known.shape[1]
        return known if not rest else np.concatenate([known, _text(start + count - rest + self.delta, rest)], axis=1)


def _embedded(span: MediaSpan) -> tuple[int, int]:
    """Return the indices of the first token with an embedding, and of the token behind the last one."""
    if span.is_embed is None:
        return span.offset, span.offset + span.length
    places = np.flatnonzero(span.is_embed)
    return span.offset + int(places[0]), span.offset + int(places[-1]) + 1


def _text(position: int, count: int) -> Ints:
    return np.broadcast_to(np.arange(position, position + count), (3, count))
