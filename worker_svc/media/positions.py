"""Positions of a prompt with images and videos on the axes time, height and width, for models with M-RoPE.

Text counts on all axes alike. The embeddings of an item begin at the position of the text before it: the axes count its times,
rows and columns. Where a video has text between its frames, each run of embeddings begins at the position of the text before
it. Text after a run continues as behind an image of its rows and columns, so tokens behind the last item have their index plus
a constant. Source: get_rope_index of transformers' Qwen2-VL, Qwen2.5-VL, Qwen3-VL and GLM-4V.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.plan import Ints, MediaSpan

_MOST_TIME = 1 << 17
"""Largest position in time within an item: devices keep rotary values up to the largest position."""


class PromptAxes:
    """The positions of one request's tokens on three axes.

    Args:
        spans: the prompt's items, by ascending offset; each has a grid of as many places as it has embeddings.

    Attributes:
        delta: position of a token behind the last item, minus its index.
    """

    def __init__(self, spans: Sequence[MediaSpan]) -> None:
        parts: list[Ints] = [np.empty((3, 0), np.int64)]
        index = position = 0
        for first, grid in (run for span in spans for run in _runs(span)):
            parts.append(_text(position, first - index))
            position += first - index
            parts.append(grid + position)
            # transformers adds the larger one of rows and columns, even if there are more positions in time.
            position += int(grid[1:].max()) + 1
            index = first + grid.shape[1]
        self._known: Ints = np.concatenate(parts, axis=1)
        self.delta = position - index

    def of(self, start: int, count: int) -> Ints:
        """Return the positions [3, count] of the tokens from index `start` on."""
        known = self._known[:, start : start + count]
        rest = count - known.shape[1]
        return known if not rest else np.concatenate([known, _text(start + count - rest + self.delta, rest)], axis=1)


def check_places(index: int, span: MediaSpan) -> None:
    """Raise InvalidRequest if an item of a prompt has no grid, or its embeddings are no run, nor one run for each time."""
    if span.grid is None:
        raise InvalidRequest(f"Media item {index} has no grid; the model has positions on three axes.")
    if not 0 <= span.time_step * span.grid[0] <= _MOST_TIME:
        text = f"Media item {index} has {span.grid[0]} times with {span.time_step} positions between them"
        raise InvalidRequest(f"{text}; the limit of all is {_MOST_TIME}.")
    firsts, sizes = _runs_of(span)
    if len(firsts) != 1 and sizes.tolist() != [span.num_embeds // span.grid[0]] * span.grid[0]:
        text = f"Media item {index} has {len(firsts)} runs of embeddings; it must have one, or {span.grid[0]} of equal length."
        raise InvalidRequest(text)


def _runs_of(span: MediaSpan) -> tuple[Ints, Ints]:
    """Return the first token of each run of embeddings in a span, and the lengths of the runs."""
    if span.is_embed is None:
        return np.array([0]), np.array([span.length])
    steps = np.diff(np.concatenate([[0], span.is_embed, [0]]).astype(np.int8))
    firsts = np.flatnonzero(steps == 1)
    return firsts, np.flatnonzero(steps == -1) - firsts


def _runs(span: MediaSpan) -> Iterator[tuple[int, Ints]]:
    """Yield the index of the first token of each run of embeddings, and their places [3, N] from 0 on."""
    assert span.grid is not None, "checked when the request was added"
    times, rows, columns = span.grid
    places = np.indices(span.grid).reshape(3, -1)
    firsts, _ = _runs_of(span)
    if len(firsts) != times:
        # transformers multiplies integers by a value of float32.
        step = np.float32(span.time_step)
        places[0] = (places[0].astype(np.float32) * step).astype(np.int64)
        yield span.offset + int(firsts[0]), places
        return
    for first in firsts.tolist():
        yield span.offset + first, places[:, : rows * columns]


def _text(position: int, count: int) -> Ints:
    return np.broadcast_to(np.arange(position, position + count), (3, count))
