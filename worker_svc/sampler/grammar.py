"""Grammar bitmask: masks the tokens that a constrained request's grammar does not allow in this step."""

import numpy as np
import torch

from tetrad.worker_svc.plan import GrammarRows, Ints
from tetrad.worker_svc.sampler.processors import MASKED


def apply_grammar(logits: torch.Tensor, handles: Ints, grammar: GrammarRows | None) -> None:
    """Mask logits [R, V] in place where row r, the request `handles[r]`, has a bitmask; None: nothing to do."""
    if grammar is None:
        return
    row_of = {handle: row for row, handle in enumerate(handles.tolist())}
    pairs = [(row_of[handle], index) for index, handle in enumerate(grammar.handles.tolist()) if handle in row_of]
    for row, index in pairs:
        bits = np.unpackbits(grammar.bitmask[index].view(np.uint8), bitorder="little", count=logits.shape[1])
        logits[row].masked_fill_(torch.from_numpy(bits == 0), MASKED)
