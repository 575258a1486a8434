"""Rotates queries and keys, and writes keys and values to their pages, in one pass over a layer's qkv.

Su et al., "RoFormer" (2021). Dimensions 2i and 2i+1 of a head are one pair (layers/rotary.py explains why); dimensions after
`rotary_dim` are not rotated. Llama 3, YaRN and others differ only in the angles. Models with norms of heads (Qwen3) apply them
before the rotation.
Dims: T tokens, H query heads, K kv heads, D head size, R rotary_dim.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - as torch names it
import triton
import triton.language as tl


def rotate_and_cache_reference(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    num_heads: int,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    head_norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    eps: float = 0.0,
) -> None:
    """Rotate queries in place; write rotated keys, and values, to the cache.

    Args:
        qkv: [T, (H + 2 * K) * D], queries, keys, values; rows may have gaps between them. Its keys and values do not change.
        cos_sin: [T, R] float32, R / 2 cosines and R / 2 sines.
        slots: [T] int64, block id * block_size + offset; negative: the token is padding, and is not written.
        cache: [num_blocks, block_size, 2, K, D], contiguous; in fp8, written values are divided by the scales.
        num_heads: H.
        key_scale, value_scale: scales of an fp8 cache.
        head_norms: weights [D] of the RMSNorms of queries and of keys; None: no norms.
        eps: epsilon of these norms.
    """
    num_kv_heads, head_dim = cache.shape[3:]
    heads = qkv.view(len(qkv), -1, head_dim)
    unturned = heads[:, : num_heads + num_kv_heads].float()
    if head_norms is not None:
        weights = [weight.float().expand(n, -1) for weight, n in zip(head_norms, (num_heads, num_kv_heads), strict=True)]
        unturned = F.rms_norm(unturned, (head_dim,), eps=eps) * torch.cat(weights)
    turned = _turned(unturned, cos_sin)
    heads[:, :num_heads].copy_(turned[:, :num_heads])
    written = slots >= 0
    pages = cache.view(-1, 2, num_kv_heads, head_dim)
    pages[slots[written], 0] = (turned[:, num_heads:] / key_scale).to(cache.dtype)[written]
    pages[slots[written], 1] = (heads[:, num_heads + num_kv_heads :].float() / value_scale).to(cache.dtype)[written]


def _turned(heads: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    rotary_dim = cos_sin.shape[1]
    cos, sin = cos_sin[:, None].chunk(2, -1)
    even, odd = heads[..., :rotary_dim:2], heads[..., 1:rotary_dim:2]
    pairs = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return torch.cat([pairs, heads[..., rotary_dim:]], -1)


@triton.jit
def _gain(query_norm, key_norm, is_query, at, inside):  # noqa: ANN202 - triton.jit's functions have no types
    """Return the weights of one of two norms: the other one is read as zeros, so the sum is the right one."""
    of_query = tl.load(query_norm + at, mask=inside & is_query, other=0.0).to(tl.float32)
    return of_query + tl.load(key_norm + at, mask=inside & (is_query == 0), other=0.0).to(tl.float32)


@triton.jit
def rotate_and_cache_kernel(
    qkv,
    cos_sin,
    slots,
    cache,
    query_norm,
    key_norm,
    stride_qkv,
    key_scale,
    value_scale,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute head `program_id(1)` of token `program_id(0)`: a query, a key or a value."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.arange(0, BLOCK)
    inside = at < HEAD_DIM
    source = qkv + token * stride_qkv + head * HEAD_DIM
    value = tl.load(source + at, mask=inside, other=0.0).to(tl.float32)
    if head < NUM_HEADS + NUM_KV_HEADS:
        # The pair's other half, with its sign in the rotation.
        other = tl.load(source + (at ^ 1), mask=inside, other=0.0).to(tl.float32)
        if HAS_NORMS:
            scale = 1 / tl.sqrt(tl.sum(value * value, 0) / HEAD_DIM + eps)
            value *= scale * _gain(query_norm, key_norm, head < NUM_HEADS, at, inside)
            other *= scale * _gain(query_norm, key_norm, head < NUM_HEADS, at ^ 1, inside)
        turns = at < ROTARY_DIM
        angles = cos_sin + token * ROTARY_DIM + at // 2
        cos = tl.load(angles, mask=turns, other=1.0)
        sin = tl.load(angles + ROTARY_DIM // 2, mask=turns, other=0.0)
        value = value * cos + tl.where(at % 2 == 0, -other, other) * sin
    if head < NUM_HEADS:
        tl.store(source + at, value, mask=inside)
    else:
        slot = tl.load(slots + token)
        kv_head = head - NUM_HEADS
        scale = tl.where(kv_head < NUM_KV_HEADS, key_scale, value_scale)
        if slot >= 0:
            target = cache + (slot * 2 * NUM_KV_HEADS + kv_head) * HEAD_DIM
            tl.store(target + at, value / scale, mask=inside)


def rotate_and_cache(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    num_heads: int,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    head_norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    eps: float = 0.0,
) -> None:
    """See rotate_and_cache_reference."""
    num_kv_heads, head_dim = cache.shape[3:]
    assert qkv.stride(1) == 1 and cache.is_contiguous() and cos_sin.is_contiguous()
    assert qkv.shape[1] == (num_heads + 2 * num_kv_heads) * head_dim
    assert cos_sin.shape[1] % 2 == 0 and cos_sin.shape[1] <= head_dim
    if len(qkv):
        rotate_and_cache_kernel[(len(qkv), num_heads + 2 * num_kv_heads)](
            qkv,
            cos_sin,
            slots,
            cache,
            *(head_norms or (cos_sin, cos_sin)),
            qkv.stride(0),
            key_scale,
            value_scale,
            eps,
            NUM_HEADS=num_heads,
            NUM_KV_HEADS=num_kv_heads,
            HEAD_DIM=head_dim,
            ROTARY_DIM=cos_sin.shape[1],
            HAS_NORMS=head_norms is not None,
            BLOCK=triton.next_power_of_2(head_dim),
            num_warps=1,
        )
