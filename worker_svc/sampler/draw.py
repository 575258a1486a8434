"""Draw: draws one token per row as the winner of an exponential race (equivalent to Gumbel-max), in two stages.

In the first stage, blocks of neighbouring ids race with their summed weights; in the second, the ids of the winning block race.
The distribution P(block) P(id | block) is exact, and a row needs a few hundred random numbers instead of one for each id of the
vocabulary.

The inverse CDF needs only one random number, but is not repeatable: a logit differs by about 1e-5 from batch to batch, and in a
cumulated sum this moves every boundary between two ids. A draw among many neighbouring unlikely ids would then give another id.
A race changes its winner only if the two best times are that close, once in about a hundred thousand draws.
"""

import numpy as np
import numpy.typing as npt
import torch

from tetrad.worker_svc.core.plan import Floats, Ints
from tetrad.worker_svc.sampler.philox import uniforms

BLOCK = 256
"""Number of neighbouring ids in a block."""


def weigh_(logits: torch.Tensor, largest: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Turn logits [N, V] into weights exp((logit - largest [N]) / temperature [N]), in place, and return them."""
    return logits.sub_(largest[:, None]).div_(temperature[:, None]).exp_()


def block_sums(weights: torch.Tensor) -> Floats:
    """Return the sums [N, ceil(V / BLOCK)] of neighbouring weights [N, V]."""
    num_whole = weights.shape[1] // BLOCK
    sums = weights[:, : num_whole * BLOCK].reshape(len(weights), num_whole, BLOCK).sum(2)
    rest = weights[:, num_whole * BLOCK :]
    found: Floats = (torch.cat([sums, rest.sum(1, keepdim=True)], 1) if rest.shape[1] else sums).numpy()
    return found


def draw(weights: torch.Tensor, sums: Floats, thresholds: Floats, seeds: Ints, positions: Ints) -> Ints:
    """Draw an id for each row.

    Args:
        weights: [N, V].
        sums: [N, blocks], sums of the weights that can be drawn, by block.
        thresholds: [N]; weights below the row's threshold cannot be drawn.
        seeds: [N].
        positions: [N], absolute positions of the drawn tokens; the noise is a function of position and seed.
    """
    blocks = _race(sums, uniforms(seeds, positions, np.zeros_like(seeds), sums.shape[1]))
    ids = blocks[:, None] * BLOCK + np.arange(BLOCK)
    vocab_size = weights.shape[1]
    inside = weights.numpy()[np.arange(len(ids))[:, None], np.minimum(ids, vocab_size - 1)]
    can_be_drawn = (ids < vocab_size) & (inside >= thresholds[:, None])
    winners = _race(np.where(can_be_drawn, inside, 0), uniforms(seeds, positions, 1 + blocks, BLOCK))
    drawn: Ints = ids[np.arange(len(ids)), winners]
    return drawn


def _race(rates: Floats, noise: npt.NDArray[np.float64]) -> Ints:
    """Return for each row the index with the shortest exponential time -log(1 - noise) / rate; rate 0 never wins."""
    times = np.divide(-np.log1p(-noise), rates, out=np.full(noise.shape, np.inf), where=rates > 0)
    winners: Ints = times.argmin(1)
    return winners
