"""Attention of one query a request over paged keys and values, split along the keys.

A decode step reads every key once and computes little, so what counts is that all of the device reads: a request's keys are cut
into `num_splits` parts that are attended to side by side ("Flash-Decoding", Dao et al., 2023), and a second kernel merges the
parts by their maxima and sums. The number of splits depends on the batch, not on the lengths, so a graph holds for all of them.
Dims: B requests, H query heads, K kv heads, G = H / K, D head size, P pages a request, S splits.
"""

import torch
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.attention_mask import attend, pages_of, visible

_LOG2_E = tl.constexpr(1.4426950408889634)


def decode_attention_reference(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    num_keys: torch.Tensor,
    *,
    num_splits: int,  # noqa: ARG001 - one signature for both
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> torch.Tensor:
    """Return [B, H, D], in the query's type; zeros for requests without keys, which are padding.

    Args:
        query: [B, H, D]; requests may lie apart.
        cache: [num_blocks, block_size, 2, K, D], contiguous; the step's own keys and values are in it.
        block_tables: [B, P] int32.
        num_keys: [B] int32, the query's own included.
        num_splits: S.
        scale, window, softcap, key_scale, value_scale: as of prefill_attention.
    """
    out = torch.zeros_like(query)
    for row, total in enumerate(num_keys.tolist()):
        if total:
            keys, values = pages_of(cache, block_tables[row], total)
            seen = visible(torch.tensor([total - 1], device=query.device), total, window)
            one = query[row : row + 1]
            out[row] = attend(one, keys * key_scale, values * value_scale, seen, scale=scale, softcap=softcap)[0].to(out.dtype)
    return out


@triton.jit
def decode_attention_kernel(
    query,
    cache,
    block_tables,
    num_keys,
    partial,
    stride_query,
    stride_table,
    scale,
    window,
    softcap,
    key_scale,
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
    """Attend for request `program_id(0)` and kv head `program_id(1)` to part `program_id(2)` of the keys.

    Writes the part's sum of values, maximum and mass to `partial`, as [B, H, S, D + 2] float32.
    """
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    num_splits = tl.num_programs(2)
    total = tl.load(num_keys + request)
    begin_all = 0
    if window > 0:
        begin_all = tl.maximum(total - window, 0)
    # Parts are whole tiles, so that no tile is read twice.
    share = tl.cdiv(tl.cdiv(total - begin_all, num_splits), BLOCK_KEYS) * BLOCK_KEYS
    begin = begin_all + split * share
    end = tl.minimum(begin + share, total)

    rows = tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    is_row = rows < GROUP
    in_head = dims < HEAD_DIM
    heads = kv_head * GROUP + rows
    of_query = request * stride_query + heads * HEAD_DIM
    q = tl.load(query + of_query[:, None] + dims[None, :], mask=is_row[:, None] & in_head[None, :], other=0.0)
    peak = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    mass = tl.zeros([BLOCK_ROWS], tl.float32)
    total_value = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)

    table = block_tables + request * stride_table
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
        scores = tl.where(exists[None, :], scores * _LOG2_E, float("-inf"))
        # Every tile has at least one key, so this is finite.
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - new_peak[:, None])
        fade = tl.exp2(peak - new_peak)
        mass = mass * fade + tl.sum(weights, 1)
        v = tl.load(cache + place[:, None] + NUM_KV_HEADS * HEAD_DIM + dims[None, :], mask=inside, other=0.0).to(q.dtype)
        total_value = total_value * fade[:, None] + tl.dot(weights.to(q.dtype), v, input_precision=PRECISION)
        peak = new_peak

    target = ((request * NUM_KV_HEADS * GROUP + heads) * num_splits + split) * (HEAD_DIM + 2)
    tl.store(partial + target[:, None] + dims[None, :], total_value, mask=is_row[:, None] & in_head[None, :])
    tl.store(partial + target + HEAD_DIM, peak, mask=is_row)
    tl.store(partial + target + HEAD_DIM + 1, mass, mask=is_row)


@triton.jit
def merge_parts_kernel(
    partial,
    out,
    stride_out,
    num_splits,
    value_scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
):
    """Merge the parts of request `program_id(0)` and head `program_id(1)`."""
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    splits = tl.arange(0, BLOCK_SPLITS)
    dims = tl.arange(0, BLOCK_DIM)
    in_head = dims < HEAD_DIM
    exists = splits < num_splits
    source = ((request * tl.num_programs(1) + head) * num_splits + splits) * (HEAD_DIM + 2)
    peak = tl.load(partial + source + HEAD_DIM, mask=exists, other=float("-inf"))
    mass = tl.load(partial + source + HEAD_DIM + 1, mask=exists, other=0.0)
    top = tl.max(peak, 0)
    # Without any key, all is zero: the row is padding.
    share = tl.where(mass > 0, tl.exp2(peak - tl.where(top == float("-inf"), 0.0, top)), 0.0)
    values = tl.load(partial + source[:, None] + dims[None, :], mask=exists[:, None] & in_head[None, :], other=0.0)
    whole = tl.sum(mass * share, 0)
    result = tl.sum(values * share[:, None], 0) / tl.where(whole == 0, 1.0, whole) * value_scale
    tl.store(out + request * stride_out + head * HEAD_DIM + dims, result, mask=in_head)


def num_splits_for(num_requests: int, num_kv_heads: int, num_processors: int, max_model_len: int) -> int:
    """Return the splits that fill the device without making parts of less than 256 keys.

    Args:
        num_requests: B.
        num_kv_heads: K.
        num_processors: streaming multiprocessors.
        max_model_len: the longest context, in tokens.
    """
    wanted = -(-2 * num_processors // max(num_requests * num_kv_heads, 1))
    return max(1, min(wanted, max_model_len // 256, 64))


def decode_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    num_keys: torch.Tensor,
    *,
    num_splits: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> torch.Tensor:
    """See decode_attention_reference."""
    num_requests, num_heads, head_dim = query.shape
    num_kv_heads = cache.shape[3]
    assert query.stride()[1:] == (head_dim, 1) and cache.is_contiguous() and block_tables.stride(1) == 1
    assert num_heads % num_kv_heads == 0
    out = torch.empty((num_requests, num_heads, head_dim), dtype=query.dtype, device=query.device)
    if not num_requests:
        return out
    partial = torch.empty((num_requests, num_heads, num_splits, head_dim + 2), dtype=torch.float32, device=query.device)
    group, block_dim = num_heads // num_kv_heads, max(triton.next_power_of_2(head_dim), 16)
    decode_attention_kernel[(num_requests, num_kv_heads, num_splits)](
        query,
        cache,
        block_tables,
        num_keys,
        partial,
        query.stride(0),
        block_tables.stride(0),
        scale,
        window,
        softcap or 1.0,
        key_scale,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        PAGE=cache.shape[1],
        BLOCK_ROWS=max(triton.next_power_of_2(group), 16),  # the least that a tensor core takes
        BLOCK_KEYS=64 if block_dim <= 128 else 32,
        BLOCK_DIM=block_dim,
        HAS_SOFTCAP=softcap > 0,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=4,
        num_stages=3,
    )
    merge_parts_kernel[(num_requests, num_heads)](
        partial,
        out,
        out.stride(0),
        num_splits,
        value_scale,
        HEAD_DIM=head_dim,
        BLOCK_DIM=block_dim,
        BLOCK_SPLITS=triton.next_power_of_2(num_splits),
        num_warps=1,
    )
    return out
