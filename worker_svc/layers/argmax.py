"""Argmax: finds the most likely token of each row of logits."""

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Floats, Ints


def argmax(logits: torch.Tensor) -> tuple[Ints, Floats]:
    """Return the id [N] and the value [N] of the largest logit of each row [N, V].

    Among equal logits, the lowest id counts; if there are NaNs, the first one. numpy is several times faster here than torch.
    """
    values = logits.numpy()
    ids: Ints = values.argmax(1)
    return ids, values[np.arange(len(ids)), ids]
