"""Draw: one token a row, as the winner of an exponential race (Gumbel-max in other words), held twice.

First blocks of neighbouring ids race with their summed weights, then the ids of the winning block: P(block) P(id | block), so
the distribution is exact, and a row needs a few hundred numbers rather than one for each id of the vocabulary.

Why not the inverse CDF, which needs one: a logit differs by about 1e-5 from batch to batch, and in a cumulated sum that moves
every boundary between two ids; where many unlikely ids stand together, a draw that falls among them would not come out twice.
A race changes its winner only if the two best are that close, once in about a hundred thousand draws.
"""

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.plan import Ints
from tetrad.worker_svc.sampler.philox import uniforms

_BLOCK = 256


def weights_of(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return exp((logit - largest) / temperature) [N, V] for logits [N, V] and temperature [N]."""
    largest = logits.amax(1, keepdim=True)
    return (logits - largest).div_(temperature[:, None]).exp_()


def draw(weights: torch.Tensor, seeds: Ints, positions: Ints) -> Ints:
    """Return an id for each row of weights [N, V], with the noise of (seed [N], absolute position [N])."""
    sums = _block_sums(weights).numpy()
    blocks = _race(sums, uniforms(seeds, positions, np.zeros_like(seeds), sums.shape[1]))
    ids = blocks[:, None] * _BLOCK + np.arange(_BLOCK)
    vocab_size = weights.shape[1]
    inside = weights.numpy()[np.arange(len(ids))[:, None], np.minimum(ids, vocab_size - 1)]
    winners = _race(np.where(ids < vocab_size, inside, 0), uniforms(seeds, positions, 1 + blocks, _BLOCK))
    drawn: Ints = ids[np.arange(len(ids)), winners]
    return drawn


def _block_sums(weights: torch.Tensor) -> torch.Tensor:
    """Return the sums [N, ceil(V / _BLOCK)] of neighbouring weights [N, V]."""
    num_whole = weights.shape[1] // _BLOCK
    whole = weights[:, : num_whole * _BLOCK].reshape(len(weights), num_whole, _BLOCK).sum(2)
    rest = weights[:, num_whole * _BLOCK :]
    return torch.cat([whole, rest.sum(1, keepdim=True)], 1) if rest.shape[1] else whole


def _race(rates: npt.NDArray[np.float32], noise: npt.NDArray[np.float64]) -> Ints:
    """Return for each row the index whose exponential time -log(1 - noise) / rate is the shortest; rate 0 never arrives."""
    times = np.divide(-np.log1p(-noise), rates, out=np.full(noise.shape, np.inf), where=rates > 0)
    winners: Ints = times.argmin(1)
    return winners
