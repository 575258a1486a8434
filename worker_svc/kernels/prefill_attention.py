"""Attention of prompt chunks and mixed batches over paged keys and values: causal, grouped queries, window, soft cap.

Dao, "FlashAttention-2" (2023): a tile of queries meets one tile of keys after the other and keeps a running maximum and sum.
The G query heads of a kv head share its keys, so a tile has BLOCK_Q queries times G heads as its rows:

    row r of a tile = query r // G of the tile, head r % G of the kv head

Tiles come from the host, which knows the lengths (`tiles_of`). Nothing is written for rows beyond a sequence's queries.
Dims: T query tokens, R requests, H query heads, K kv heads, G = H / K, D head size, P pages a request.
"""

import math

import numpy as np
import torch
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.attention_mask import attend, pages_of, visible

_LOG2_E = tl.constexpr(1.4426950408889634)


def prefill_attention_reference(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    first_query: torch.Tensor,
    num_keys: torch.Tensor,
    tiles: torch.Tensor,  # noqa: ARG001 - one signature for both
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> torch.Tensor:
    """Return [T, H, D], in the query's type.

    Args:
        query: [T, H, D]; tokens may lie apart. Request r's are first_query[r] to first_query[r + 1].
        cache: [num_blocks, block_size, 2, K, D], contiguous; the step's own keys and values are in it.
        block_tables: [R, P] int32.
        first_query: [R + 1] int32.
        num_keys: [R] int32, tokens of each request so far, these included: its last query sees them all.
        tiles: what tiles_of returned.
        scale: of the scores, as a rule D ** -0.5.
        window: keys that a query sees, its own included; 0: all.
        softcap: bound of the scores; 0: none.
        key_scale, value_scale: of a cache in fp8: what a stored value is multiplied by.
    """
    out = torch.empty_like(query)
    for row, end in enumerate(first_query[1:].tolist()):
        start, total = int(first_query[row]), int(num_keys[row])
        keys, values = pages_of(cache, block_tables[row], total)
        positions = torch.arange(total - (end - start), total, device=query.device)
        seen = visible(positions, total, window)
        result = attend(query[start:end], keys * key_scale, values * value_scale, seen, scale=scale, softcap=softcap)
        out[start:end] = result.to(out.dtype)
    return out


def tiles_of(num_queries: np.ndarray, group: int, block_rows: int) -> np.ndarray:
    """Return the tiles [N, 2] int32 of a step: (request, its first query of the tile), longest requests first.

    Args:
        num_queries: [R], of each request.
        group: G.
        block_rows: rows of a tile; block_rows // G queries.
    """
    per_tile = max(block_rows // group, 1)
    order = np.argsort(-num_queries, kind="stable")
    counts = -(-num_queries[order] // per_tile)
    requests = np.repeat(order, counts)
    index = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([requests, index * per_tile], 1).astype(np.int32)


@triton.jit
def prefill_attention_kernel(
    query,
    cache,
    block_tables,
    first_query,
    num_keys,
    tiles,
    out,
    stride_query,
    stride_table,
    stride_out,
    scale,
    window,
    softcap,
    key_scale,
    value_scale,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Do tile `program_id(0)` for kv head `program_id(1)`."""
    request = tl.load(tiles + 2 * tl.program_id(0))
    first = tl.load(tiles + 2 * tl.program_id(0) + 1)
    kv_head = tl.program_id(1)
    start = tl.load(first_query + request)
    num_queries = tl.load(first_query + request + 1) - start
    total = tl.load(num_keys + request)

    rows = tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    queries = first + rows // GROUP
    is_row = (rows < BLOCK_ROWS // GROUP * GROUP) & (queries < num_queries)
    in_head = dims < HEAD_DIM
    # A tile's queries stand one behind the other, so this many positions lie before the first.
    positions = total - num_queries + queries
    heads = kv_head * GROUP + rows % GROUP
    at = (start + queries).to(tl.int64) * stride_query + heads * HEAD_DIM
    q = tl.load(query + at[:, None] + dims[None, :], mask=is_row[:, None] & in_head[None, :], other=0.0)

    peak = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_ROWS], tl.float32)
    total_value = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)

    last_query = tl.minimum(first + BLOCK_ROWS // GROUP, num_queries) - 1
    end = total - num_queries + last_query + 1
    begin = 0
    if window > 0:
        begin = tl.maximum(total - num_queries + first - window + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
    table = block_tables + request.to(tl.int64) * stride_table
    for key_start in range(begin, end, BLOCK_KEYS):
        keys = key_start + tl.arange(0, BLOCK_KEYS)
        exists = keys < end
        page = tl.load(table + keys // PAGE, mask=exists, other=0).to(tl.int64)
        place = ((page * PAGE + keys % PAGE) * 2 * NUM_KV_HEADS + kv_head) * HEAD_DIM
        inside = exists[:, None] & in_head[None, :]
        k = tl.load(cache + place[:, None] + dims[None, :], mask=inside, other=0.0).to(q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * key_scale)
        if HAS_SOFTCAP:
            # tanh(u) = 2 * sigmoid(2 * u) - 1
            scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
        seen = (keys[None, :] <= positions[:, None]) & exists[None, :]
        if window > 0:
            seen = seen & (positions[:, None] - keys[None, :] < window)
        scores = tl.where(seen, scores * _LOG2_E, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        # A row that has seen nothing yet stays at zero mass.
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(peak - base)
        mass = mass * fade + tl.sum(weights, 1)
        v = tl.load(cache + place[:, None] + NUM_KV_HEADS * HEAD_DIM + dims[None, :], mask=inside, other=0.0).to(q.dtype)
        total_value = total_value * fade[:, None] + tl.dot(weights.to(q.dtype), v, input_precision=PRECISION)
        peak = new_peak

    result = total_value / tl.where(mass == 0, 1.0, mass)[:, None] * value_scale
    target = (start + queries).to(tl.int64) * stride_out + heads * HEAD_DIM
    tl.store(out + target[:, None] + dims[None, :], result, mask=is_row[:, None] & in_head[None, :])


def prefill_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    first_query: torch.Tensor,
    num_keys: torch.Tensor,
    tiles: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    block_rows: int = 64,
) -> torch.Tensor:
    """See prefill_attention_reference; `block_rows` is what tiles_of was given."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = cache.shape[3]
    assert query.stride()[1:] == (head_dim, 1) and cache.is_contiguous() and block_tables.stride(1) == 1
    assert num_heads % num_kv_heads == 0 and num_heads // num_kv_heads <= block_rows
    out = torch.empty((num_tokens, num_heads, head_dim), dtype=query.dtype, device=query.device)
    if len(tiles):
        block_dim = max(triton.next_power_of_2(head_dim), 16)
        prefill_attention_kernel[(len(tiles), num_kv_heads)](
            query,
            cache,
            block_tables,
            first_query,
            num_keys,
            tiles,
            out,
            query.stride(0),
            block_tables.stride(0),
            out.stride(0),
            scale,
            window,
            softcap or 1.0,
            key_scale,
            value_scale,
            NUM_KV_HEADS=num_kv_heads,
            GROUP=num_heads // num_kv_heads,
            HEAD_DIM=head_dim,
            PAGE=cache.shape[1],
            BLOCK_ROWS=block_rows,
            BLOCK_KEYS=64 if block_dim <= 128 else 32,
            BLOCK_DIM=block_dim,
            HAS_SOFTCAP=softcap > 0,
            PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
            num_warps=4 if block_dim <= 128 else 8,
            num_stages=2,
        )
    return out


def default_scale(head_dim: int) -> float:
    """Return 1 / sqrt(head_dim)."""
    return 1 / math.sqrt(head_dim)
