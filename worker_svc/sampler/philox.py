"""Philox4x32-10: uniforms that are a pure function of (seed, position).

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Counter = (position, 0), key = seed; no
state, so the noise of a token is the same in every batch, after a preemption, a retry or a restart.
"""

import numpy as np
import numpy.typing as npt

from tetrad.worker_svc.plan import Ints

Words = npt.NDArray[np.uint64]
"""32-bit words in 64-bit lanes, so that a product keeps its high half."""

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


def uniforms(seeds: Ints, positions: Ints) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) with 53 random bits for each (seed, absolute position of the token being sampled)."""
    zeros = np.zeros(len(seeds), np.uint64)
    key, counter = seeds.astype(np.uint64), positions.astype(np.uint64)
    words = philox4x32((counter & _LOW, counter >> _HALF, zeros, zeros), (key & _LOW, key >> _HALF))
    bits = (words[0] >> np.uint64(5)) * np.uint64(1 << 26) + (words[1] >> np.uint64(6))
    return bits.astype(np.float64) / float(1 << 53)
