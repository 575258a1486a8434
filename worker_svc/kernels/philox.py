"""Philox on the device: the same uniforms as sampler/philox.py, which is the reference."""

import triton
import triton.language as tl


@triton.jit
def uniform(seed, position, stream, index):
    """Return number `index` [n] of (seed, position, stream), as float64 in [0, 1); `uniforms` of the reference."""
    zeros = tl.zeros_like(index).to(tl.uint32)
    lane = (index // 2).to(tl.uint32)
    # Triton's generator is Philox4x32-10, too.
    first, second, third, fourth = tl.philox(seed, zeros + position.to(tl.uint32), lane, zeros + stream.to(tl.uint32), zeros)
    is_first = index % 2 == 0
    high, low = tl.where(is_first, first, third), tl.where(is_first, second, fourth)
    # 53 random bits, exactly what a float64 holds.
    return ((high >> 5).to(tl.float64) * (1 << 26) + (low >> 6).to(tl.float64)) / (1 << 53)
