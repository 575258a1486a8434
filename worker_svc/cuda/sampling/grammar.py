"""Grammar bitmask: masks the tokens that a constrained request's grammar does not allow in this step."""

from functools import partial

import numpy as np

from tetrad.worker_svc.core.plan import GrammarRows
from tetrad.worker_svc.cuda.sampling.interface import LogitsChange
from tetrad.worker_svc.cuda.sampling.rows import SamplingRows
from tetrad.worker_svc.kernels.token_masks import apply_token_masks


def grammar_change(rows: SamplingRows, grammar: GrammarRows | None) -> LogitsChange | None:
    """Return the change that applies the bitmasks of rows; None if no row has a bitmask. Bitmasks are uploaded in each step."""
    if grammar is None:
        return None
    indices = grammar.indices(rows.handles, rows.places)
    which = np.flatnonzero(indices >= 0)
    if not len(which):
        return None
    words = grammar.bitmask[indices[which]].view(np.int32)
    masks = rows.accelerator.upload(np.concatenate([which[:, None].astype(np.int32), words], 1))
    return partial(apply_token_masks, masks=masks)
