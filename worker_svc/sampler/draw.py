"""Draw: one token a row by inverse CDF.

Weights are summed in id order in float64, so neither the order of candidates nor the other rows of a batch have a say.
"""

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.plan import Ints


def weights_of(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return exp((logit - largest) / temperature) [N, V] for logits [N, V] and temperature [N]."""
    largest = logits.amax(1, keepdim=True)
    return (logits - largest).div_(temperature[:, None]).exp_()


def draw(weights: torch.Tensor, noise: npt.NDArray[np.float64]) -> Ints:
    """Return for each row of weights [N, V] the first id whose cumulated weight exceeds noise [N] times the row's sum."""
    cumulated = weights.cumsum(1, dtype=torch.float64)
    totals = cumulated[:, -1].numpy()
    # noise * total may round up to the total, which no cumulated weight exceeds.
    targets = np.minimum(noise * totals, np.nextafter(totals, 0))
    found = torch.searchsorted(cumulated, torch.from_numpy(targets)[:, None], right=True)[:, 0]
    drawn: Ints = found.clamp_(max=weights.shape[1] - 1).numpy()
    return drawn
