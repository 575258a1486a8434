"""Attention of prompt chunks and mixed batches over paged keys and values: causal, grouped queries, window, soft cap.

Dao, "FlashAttention-2" (2023): a tile of queries reads one tile of keys after another and keeps a running maximum and sum.
The G query heads of a kv head share its keys, so a tile has BLOCK_Q queries times G heads as its rows:

    row r of a tile = query r // G of the tile, head r % G of the kv head

The host, which knows the lengths, builds the tiles (`tiles_of`). Rows beyond a sequence's queries are not written, and neither
are queries without a tile. A launch for more tiles than a step has is padded with tiles of request -1, which return at once.
Dims: T query tokens, R requests, H query heads, K kv heads, G = H / K, D head size, P pages per request.
"""

import numpy as np
import torch
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.attend_keys import attend_keys, sink_mass
from tetrad.worker_svc.kernels.attention_launch import Launch, launch_for, padded_head_dim, score_factors
from tetrad.worker_svc.kernels.attention_mask import attend, linear_biases, pages_of, visible


def prefill_attention_reference(
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
    sinks: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    ends: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the attention [T, H, D], in the query's type; tokens of requests without a tile are not written.

    Args:
        query: [T, H, D]; tokens may have gaps between them. The tokens of request r are first_query[r] to first_query[r + 1].
        cache: [num_blocks, block_size, 2, K, D], contiguous; it contains the step's keys and values.
        block_tables: [R, P] int32.
        first_query: [R + 1] int32.
        num_keys: [R] int32, number of tokens of each request, those of this step included: the last query attends to all.
        tiles: the result of tiles_of, and padding.
        scale: factor of the scores, usually D ** -0.5.
        window: number of keys that a query attends to, its own included; 0: all.
        softcap: bound of the scores; 0: no bound.
        key_scale, value_scale: factors of stored keys and values in an fp8 cache.
        sinks: [H] float32, contiguous: an extra score of each head, without a value; None: no sinks.
        slopes: [H] float32, contiguous: a head's scores have a bias of slope * (position of the key - position of the query);
            None: no biases.
        ends: [T] int32, contiguous: number of keys of its request up to the last one that a query attends to, at least its own;
            None: a query attends to no later key than its own.
        out: [T, H, D], to be written; None: a new tensor.
    """
    out = torch.empty_like(query) if out is None else out
    for row in sorted({request for request, _ in tiles.tolist() if request >= 0}):
        end = int(first_query[row + 1])
        start, total = int(first_query[row]), int(num_keys[row])
        keys, values = pages_of(cache, block_tables[row], total)
        positions = torch.arange(total - (end - start), total, device=query.device)
        seen = visible(positions, total, window, None if ends is None else ends[start:end])
        keys, values = keys * key_scale, values * value_scale
        biases = linear_biases(slopes, positions, total)
        result = attend(query[start:end], keys, values, seen, scale=scale, softcap=softcap, sinks=sinks, biases=biases)
        out[start:end] = result.to(out.dtype)
    return out


def tiles_of(num_queries: np.ndarray, group: int, block_rows: int, num_computed: np.ndarray | None = None) -> np.ndarray:
    """Return the tiles [N, 2] int32 of a step: (request, first query of the tile), sorted by descending number of keys.

    Args:
        num_queries: [R], number of queries of each request.
        group: G.
        block_rows: rows of a tile, which has block_rows // G queries.
        num_computed: [R], number of keys before the first query of each request; None: 0.
    """
    per_tile = max(block_rows // group, 1)
    counts = -(-num_queries // per_tile)
    requests = np.repeat(np.arange(len(counts)), counts)
    first = (np.arange(len(requests)) - np.repeat(np.cumsum(counts) - counts, counts)) * per_tile
    num_keys = first if num_computed is None else first + num_computed[requests]
    return np.stack([requests, first], 1)[np.argsort(-num_keys, kind="stable")].astype(np.int32)


@triton.jit(do_not_specialize_on_alignment=["block_tables", "first_query", "num_keys", "tiles", "ends"])
def prefill_attention_kernel(
    query,
    cache,
    block_tables,
    first_query,
    num_keys,
    tiles,
    sinks,
    slopes,
    ends,
    out,
    stride_query,
    stride_table,
    stride_out,
    window,
    to_cap,
    to_exponent,
    value_scale,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    HAS_ENDS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute tile `program_id(0)` for kv head `program_id(1)`: tiles of a head run in parallel and share its keys in L2."""
    request = tl.load(tiles + 2 * tl.program_id(0))
    if request < 0:
        return
    first = tl.load(tiles + 2 * tl.program_id(0) + 1)
    kv_head = tl.program_id(1)
    start = tl.load(first_query + request)
    num_queries = tl.load(first_query + request + 1) - start
    num_before = tl.load(num_keys + request) - num_queries

    rows = tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    queries = first + rows // GROUP
    is_row = (rows < BLOCK_ROWS // GROUP * GROUP) & (queries < num_queries)
    inside = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    heads = kv_head * GROUP + rows % GROUP
    at = (start + queries).to(tl.int64) * stride_query + heads * HEAD_DIM
    q = tl.load(query + at[:, None] + dims[None, :], mask=inside, other=0.0)
    slope = 0.0
    if HAS_SLOPES:
        slope = tl.load(slopes + heads, mask=is_row, other=0.0)

    last = tl.minimum(first + BLOCK_ROWS // GROUP, num_queries) - 1
    begin = 0
    full_begin = 0
    full_end = (num_before + first + 1) // BLOCK_KEYS * BLOCK_KEYS
    if HAS_WINDOW:
        begin = tl.maximum(num_before + first - window + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
        seen_by_all = tl.cdiv(tl.maximum(num_before + last - window + 1, 0), BLOCK_KEYS) * BLOCK_KEYS
        full_begin = tl.minimum(seen_by_all, full_end)
    positions = num_before + tl.minimum(queries, last)
    lasts = positions
    end = num_before + last + 1
    if HAS_ENDS:
        lasts = tl.maximum(tl.load(ends + start + queries, mask=is_row, other=0) - 1, positions)
        end = tl.max(lasts, 0) + 1
    peak, mass, values = attend_keys(
        q,
        positions,
        lasts,
        cache,
        block_tables + request.to(tl.int64) * stride_table,
        kv_head,
        begin,
        full_begin,
        full_end,
        end,
        window,
        to_cap,
        to_exponent,
        slope,
        NUM_KV_HEADS,
        HEAD_DIM,
        PAGE,
        BLOCK_KEYS,
        HAS_WINDOW,
        HAS_SOFTCAP,
        HAS_SLOPES,
        PRECISION,
    )
    if HAS_SINKS:
        mass += sink_mass(sinks, heads, is_row, peak)
    # Every query attends to at least one key, its own.
    result = values * (value_scale / mass)[:, None]
    target = (start + queries).to(tl.int64) * stride_out + heads * HEAD_DIM
    tl.store(out + target[:, None] + dims[None, :], result, mask=inside)


def prefill_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    first_query: torch.Tensor,
    num_keys: torch.Tensor,
    tiles: torch.Tensor,
    *,
    scale: float,
    block_rows: int,
    window: int = 0,
    softcap: float = 0.0,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    sinks: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    ends: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    launch: Launch | None = None,
) -> torch.Tensor:
    """See prefill_attention_reference; `block_rows` is the argument of tiles_of, usually prefill_block_rows.

    `launch` None: the launch parameters in the table for this device.
    """
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = cache.shape[3]
    assert query.stride()[1:] == (head_dim, 1) and cache.is_contiguous() and block_tables.stride(1) == 1
    assert num_heads % num_kv_heads == 0 and num_heads // num_kv_heads <= block_rows
    assert scale * key_scale > 0, "the largest score is to have the largest exponent"
    out = torch.empty((num_tokens, num_heads, head_dim), dtype=query.dtype, device=query.device) if out is None else out
    assert out.shape == query.shape and out.stride()[1:] == (head_dim, 1)
    if len(tiles):
        launch = launch or launch_for("prefill", query, cache)
        prefill_attention_kernel[(len(tiles), num_kv_heads)](
            query,
            cache,
            block_tables,
            first_query,
            num_keys,
            tiles,
            query if sinks is None else sinks,
            query if slopes is None else slopes,
            query if ends is None else ends,
            out,
            query.stride(0),
            block_tables.stride(0),
            out.stride(0),
            window,
            *score_factors(scale * key_scale, softcap),
            value_scale,
            NUM_KV_HEADS=num_kv_heads,
            GROUP=num_heads // num_kv_heads,
            HEAD_DIM=head_dim,
            PAGE=cache.shape[1],
            BLOCK_ROWS=block_rows,
            BLOCK_KEYS=launch.block_keys,
            BLOCK_DIM=padded_head_dim(head_dim),
            HAS_WINDOW=window > 0,
            HAS_SOFTCAP=softcap > 0,
            HAS_SINKS=sinks is not None,
            HAS_SLOPES=slopes is not None,
            HAS_ENDS=ends is not None,
            PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
            num_warps=launch.num_warps_of(block_rows),
            num_stages=launch.num_stages,
            maxnreg=launch.max_registers,
        )
    return out
