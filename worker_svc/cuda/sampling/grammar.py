"""Grammar bitmask: masks the tokens that a constrained request's grammar does not allow in this step."""

from functools import partial

import numpy as np

from tetrad.worker_svc.core.plan import GrammarRows
from tetrad.worker_svc.cuda.sampling.interface import LogitsChange
from tetrad.worker_svc.cuda.sampling.rows import SamplingRows
from tetrad.worker_svc.kernels.token_masks import apply_token_masks
from tetrad.worker_svc.sampler.grammar import constrained_rows


def grammar_change(rows: SamplingRows, grammar: GrammarRows | None) -> LogitsChange | None:
    """Return what masks the rows that have a bitmask; None if none has. The bitmasks are uploaded each step."""
    pairs = constrained_rows(rows.handles, grammar)
    if grammar is None or not pairs:
        return None
    which, indices = (list(column) for column in zip(*pairs, strict=True))
    words = grammar.bitmask[indices].view(np.int32)
    masks = rows.accelerator.upload(np.concatenate([np.array(which, np.int32)[:, None], words], 1))
    return partial(apply_token_masks, masks=masks)
