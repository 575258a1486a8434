"""Grammar bitmask: masks the tokens that a constrained request's grammar does not allow in this step."""

import numpy as np
import torch

from tetrad.worker_svc.core.plan import GrammarRows, Ints
from tetrad.worker_svc.sampler.processors import MASKED


def constrained_rows(handles: Ints, grammar: GrammarRows | None) -> list[tuple[int, int]]:
    """Return (row, index of its bitmask) for each row of `handles` that has a bitmask."""
    if grammar is None:
        return []
    row_of = {handle: row for row, handle in enumerate(handles.tolist())}
    return [(row_of[handle], index) for index, handle in enumerate(grammar.handles.tolist()) if handle in row_of]


def apply_grammar(logits: torch.Tensor, handles: Ints, grammar: GrammarRows | None) -> None:
    """Apply bitmasks to logits [R, V] in place; row r belongs to the request `handles[r]`. `grammar` None: do nothing."""
    pairs = constrained_rows(handles, grammar)
    if grammar is None or not pairs:
        return
    rows, indices = (list(column) for column in zip(*pairs, strict=True))
    words = np.ascontiguousarray(grammar.bitmask[indices]).view(np.uint8)
    # Inverting packed bytes takes an eighth of the work; ids after the last word are not allowed.
    forbidden = np.ones((len(rows), logits.shape[1]), np.bool_)
    bits = np.unpackbits(~words, axis=1, bitorder="little", count=min(8 * words.shape[1], logits.shape[1]))
    forbidden[:, : bits.shape[1]] = bits.view(np.bool_)
    if rows == list(range(len(logits))):
        logits.masked_fill_(torch.from_numpy(forbidden), MASKED)
    else:
        for row, mask in zip(rows, torch.from_numpy(forbidden), strict=True):
            logits[row].masked_fill_(mask, MASKED)
