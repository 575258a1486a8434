"""Philox on the device: computes the same uniform numbers as sampler/philox.py, which is the reference."""

import triton
import triton.language as tl


@triton.jit
def uniform(seed, position, stream, index):
    """Return number `index` [n] of (seed, position, stream), as float64 in [0, 1); `uniforms` of the reference."""
    zeros = tl.zeros_like(index).to(tl.uint32)
    lane = (index // 2).to(tl.uint32)
    # Triton's generator is also Philox4x32-10.
    first, second, third, fourth = tl.philox(seed, zeros + position.to(tl.uint32), lane, zeros + stream.to(tl.uint32), zeros)
    is_first = index % 2 == 0
    high, low = tl.where(is_first, first, third), tl.where(is_first, second, fourth)
    # 53 random bits, as many as a float64 represents exactly.
    return ((high >> 5).to(tl.float64) * (1 << 26) + (low >> 6).to(tl.float64)) / (1 << 53)
