"""Mixed rows: the inputs of a graph that runs steps of any shape, prompts beside decodes.

The host writes a step's rows and the work of attention to one array; a graph reads the same array in device memory. Its shape
depends only on the number of tokens of the graph. Tokens after the step's are padding: one row has all of them.
Dims: N tokens of the graph, R rows that it has room for, M tiles that it has room for.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.row_tables import Table, table_of

_COLUMNS = 5


@dataclass(frozen=True, slots=True)
class MixedRows:
    """The inputs of a graph, in device memory.

    Attributes:
        num_tokens: N.
        table: [R + 1, 5] int32, the rows of the step, see gather_inputs; then the padding.
        first_query: [R + 2] int32, see prefill_attention.
        num_keys: [R + 1] int32, the number of tokens of each request.
        decode_keys: [R] int32, the same for the rows of one token, which are the first rows; 0 for the others.
        tiles: [M, 2] int32, the tiles of the rows of several tokens, see prefill_attention; request -1: padding.
    """

    num_tokens: int
    table: torch.Tensor
    first_query: torch.Tensor
    num_keys: torch.Tensor
    decode_keys: torch.Tensor
    tiles: torch.Tensor


class Tiles(Protocol):
    """Makes the tiles of the rows of several tokens."""

    def of(self, rows: StepRows) -> Table:
        """Return the tiles [n, 2] of a step."""

    def most(self, num_tokens: int, num_rows: int) -> int:
        """Return the largest number of tiles of a step with these numbers of tokens and of rows."""


class MixedLayout:
    """The layout of the inputs of a model's graphs.

    Args:
        max_num_seqs: maximum number of requests of a step.
        tiles: makes the tiles of prompts.
    """

    def __init__(self, max_num_seqs: int, tiles: Tiles) -> None:
        self._max_num_seqs, self._tiles = max_num_seqs, tiles

    def pack(self, rows: StepRows, num_tokens: int) -> Table:
        """Return the inputs of a graph of `num_tokens`, for a step that has no more."""
        num_rows, most_rows, missing = len(rows.slots), self._most_rows(num_tokens), num_tokens - rows.num_tokens
        table = np.zeros((most_rows + 1, _COLUMNS), np.int32)
        table[:num_rows] = table_of(rows)
        table[num_rows:, 0] = -1
        table[num_rows] = -1, 0, missing, rows.num_tokens, 0
        first_query = np.full(most_rows + 2, rows.num_tokens, np.int32)
        first_query[:num_rows] = rows.first_token
        num_keys = np.zeros(most_rows + 1, np.int32)
        num_keys[:num_rows] = rows.num_computed + rows.num_scheduled
        decode_keys = np.zeros(most_rows, np.int32)
        decode_keys[: rows.num_decodes] = num_keys[: rows.num_decodes]
        found = self._tiles.of(rows)
        tiles = np.full((self._tiles.most(num_tokens, most_rows), 2), -1, np.int32)
        tiles[: len(found)] = found
        return np.concatenate([part.reshape(-1) for part in (table, first_query, num_keys, decode_keys, tiles)])

    def view(self, packed: torch.Tensor, num_tokens: int) -> MixedRows:
        """Return the inputs of a graph of `num_tokens`, from a copy of `pack`'s result in device memory."""
        most_rows = self._most_rows(num_tokens)
        ends = np.cumsum([(most_rows + 1) * _COLUMNS, most_rows + 2, most_rows + 1, most_rows]).tolist()
        table, first_query, num_keys, decode_keys, tiles = packed.tensor_split(ends)
        return MixedRows(num_tokens, table.view(-1, _COLUMNS), first_query, num_keys, decode_keys, tiles.view(-1, 2))

    def _most_rows(self, num_tokens: int) -> int:
        return min(self._max_num_seqs, num_tokens)
