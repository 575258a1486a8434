"""Philox4x32-10: computes uniform random numbers as a pure function of (seed, position).

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Counter = (position, lane, stream,
0), key = seed; no state, so the noise of a token is the same in every batch, after a preemption, a retry or a restart.
"""

import numpy as np
import numpy.typing as npt

from tetrad.worker_svc.core.plan import Ints

Words = npt.NDArray[np.uint64]
"""32-bit words in 64-bit integers, so that a product keeps its high half."""

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """Return the four output words of each lane."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def uniforms(seeds: Ints, positions: Ints, streams: Ints, count: int) -> npt.NDArray[np.float64]:
    """Return `count` numbers in [0, 1) with 53 random bits for each (seed, absolute position of the sampled token, stream).

    Args:
        seeds: [N].
        positions: [N], below 2**32.
        streams: [N], below 2**32; different streams give independent numbers for the same token.
        count: number of values per row.

    Returns:
        [N, count].
    """
    num_lanes = -(-count // 2)
    shape = (len(seeds), num_lanes)
    key = seeds.astype(np.uint64)[:, None]
    position, stream = (np.broadcast_to(values.astype(np.uint64)[:, None], shape) for values in (positions, streams))
    lane = np.broadcast_to(np.arange(num_lanes, dtype=np.uint64), shape)
    words = philox4x32((position, lane, stream, np.zeros(shape, np.uint64)), (key & _LOW, key >> _HALF))
    first, second = _to_unit(words[0], words[1]), _to_unit(words[2], words[3])
    return np.stack([first, second], 2).reshape(len(seeds), -1)[:, :count]


def _to_unit(high: Words, low: Words) -> npt.NDArray[np.float64]:
    bits = (high >> np.uint64(5)) * np.uint64(1 << 26) + (low >> np.uint64(6))
    return bits.astype(np.float64) / float(1 << 53)
