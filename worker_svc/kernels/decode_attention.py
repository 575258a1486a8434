"""Attention of one query per request over paged keys and values, split along the keys.

A decode step reads every key once and computes little, so all processors of the device have to read: a request's keys are
divided into `num_splits` parts that are computed in parallel ("Flash-Decoding", Dao et al., 2023), and a second kernel merges
the parts by their maxima and sums. The number of splits depends on the batch, not on the lengths, so one graph serves all
lengths.
Dims: B requests, H query heads, K kv heads, G = H / K, D head size, P pages per request, S splits.
"""

import torch
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.attend_keys import attend_keys, sink_mass
from tetrad.worker_svc.kernels.attention_launch import Launch, launch_for, padded_head_dim, score_factors
from tetrad.worker_svc.kernels.attention_mask import attend, pages_of, visible


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
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the attention [B, H, D], in the query's type; zeros for requests without keys, which are padding.

    Args:
        query: [B, H, D]; requests may have gaps between them.
        cache: [num_blocks, block_size, 2, K, D], contiguous; it contains the step's keys and values.
        block_tables: [B, P] int32.
        num_keys: [B] int32, the query's own key included.
        num_splits: S.
        scale, window, softcap, key_scale, value_scale, sinks: see prefill_attention.
    """
    out = torch.zeros_like(query)
    for row, total in enumerate(num_keys.tolist()):
        if total:
            keys, values = pages_of(cache, block_tables[row], total)
            seen = visible(torch.tensor([total - 1], device=query.device), total, window)
            one = query[row : row + 1]
            keys, values = keys * key_scale, values * value_scale
            found = attend(one, keys, values, seen, scale=scale, softcap=softcap, sinks=sinks)
            out[row] = found[0].to(out.dtype)
    return out


@triton.jit(do_not_specialize_on_alignment=["block_tables", "num_keys"])
def decode_attention_kernel(
    query,
    cache,
    block_tables,
    num_keys,
    sinks,
    out,
    masses,
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
    IS_SPLIT: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute kv head `program_id(0)` of request `program_id(1)` for part `program_id(2)` of the keys.

    Heads are the first grid dimension, because their keys are neighbours in a page. Writes [B, H, D] to `out`. If IS_SPLIT,
    writes parts [B, H, S, D] to `out`, and base-2 logarithms of their masses [B, H, S] to `masses`; both are float32, and -inf
    for a part without keys.
    """
    kv_head = tl.program_id(0)
    request = tl.program_id(1).to(tl.int64)
    total = tl.load(num_keys + request)
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(total - window, 0)
    end = total
    num_splits = tl.num_programs(2)
    if IS_SPLIT:
        # Parts consist of whole tiles, so that no tile is read twice.
        share = tl.cdiv(tl.cdiv(total - begin, num_splits), BLOCK_KEYS) * BLOCK_KEYS
        begin += tl.program_id(2) * share
        end = tl.maximum(tl.minimum(begin + share, total), begin)

    rows = tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    is_row = rows < GROUP
    inside = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    heads = kv_head * GROUP + rows
    at = request * stride_query + heads * HEAD_DIM
    q = tl.load(query + at[:, None] + dims[None, :], mask=inside, other=0.0)
    peak, mass, values = attend_keys(
        q,
        tl.full([BLOCK_ROWS], 0, tl.int32) + end - 1,
        cache,
        block_tables + request * stride_table,
        kv_head,
        begin,
        begin,
        begin + (end - begin) // BLOCK_KEYS * BLOCK_KEYS,
        end,
        window,
        to_cap,
        to_exponent,
        NUM_KV_HEADS,
        HEAD_DIM,
        PAGE,
        BLOCK_KEYS,
        False,
        HAS_SOFTCAP,
        PRECISION,
    )
    if HAS_SINKS and not IS_SPLIT:
        mass += sink_mass(sinks, heads, is_row, peak)
    # Without keys, the result is zero: padding, or a part after the last key.
    divisor = tl.where(mass == 0, 1.0, mass)
    values = values / divisor[:, None]
    if IS_SPLIT:
        part = (request * NUM_KV_HEADS * GROUP + heads) * num_splits + tl.program_id(2)
        tl.store(out + part[:, None] * HEAD_DIM + dims[None, :], values, mask=inside)
        tl.store(masses + part, peak + tl.log2(divisor), mask=is_row)
    else:
        target = request * stride_out + heads * HEAD_DIM
        tl.store(out + target[:, None] + dims[None, :], values * value_scale, mask=inside)


@triton.jit
def merge_parts_kernel(
    parts,
    masses,
    sinks,
    out,
    stride_out,
    num_splits,
    value_scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Merge the parts of head `program_id(0)` of request `program_id(1)`; see decode_attention_kernel."""
    head = tl.program_id(0)
    request = tl.program_id(1).to(tl.int64)
    splits = tl.arange(0, BLOCK_SPLITS)
    dims = tl.arange(0, BLOCK_DIM)
    in_head = dims < HEAD_DIM
    exists = splits < num_splits
    source = (request * tl.num_programs(0) + head) * num_splits + splits
    logarithm = tl.load(masses + source, mask=exists, other=float("-inf"))
    top = tl.max(logarithm, 0)
    # Without keys, the result is zero: the row is padding.
    base = tl.where(top == float("-inf"), 0.0, top)
    share = tl.exp2(logarithm - base)
    whole = tl.sum(share, 0)
    if HAS_SINKS:
        whole += sink_mass(sinks, head, True, base)
    inside = exists[:, None] & in_head[None, :]
    values = tl.load(parts + source[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
    result = tl.sum(values * share[:, None], 0) * (value_scale / tl.where(whole == 0, 1.0, whole))
    tl.store(out + request * stride_out + head * HEAD_DIM + dims, result, mask=in_head)


def num_splits_for(num_requests: int, num_kv_heads: int, num_processors: int, longest: int) -> int:
    """Return the number of splits that fills the device with parts of at least 256 keys; 1 needs no second kernel.

    It is a power of two, so that few kernels are compiled.

    Args:
        num_requests: B.
        num_kv_heads: K.
        num_processors: number of streaming multiprocessors.
        longest: tokens of the longest context, or an upper bound, such as the model's if the number has to hold for all steps.
    """
    # Two programs fill a processor; even with more programs, a very long context is divided among several.
    wanted = max(2 * num_processors // max(num_requests * num_kv_heads, 1), longest // 16_384, 1)
    most = max(longest // 256, 1)
    return min(1 << (wanted - 1).bit_length(), 1 << (most.bit_length() - 1), 64)


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
    sinks: torch.Tensor | None = None,
    launch: Launch | None = None,
) -> torch.Tensor:
    """See decode_attention_reference; `launch` None: the launch parameters in the table for this device."""
    num_requests, num_heads, head_dim = query.shape
    num_kv_heads = cache.shape[3]
    assert query.stride()[1:] == (head_dim, 1) and cache.is_contiguous() and block_tables.stride(1) == 1
    assert num_heads % num_kv_heads == 0
    assert scale * key_scale > 0, "the largest score is to have the largest exponent"
    out = torch.empty((num_requests, num_heads, head_dim), dtype=query.dtype, device=query.device)
    if not num_requests:
        return out
    is_split, parts, masses = num_splits > 1, out, out
    if is_split:
        parts, masses = (
            torch.empty((num_requests, num_heads, num_splits, *rest), dtype=torch.float32, device=query.device)
            for rest in ((head_dim,), ())
        )
    group = num_heads // num_kv_heads
    launch = launch or launch_for("decode", query, cache)
    decode_attention_kernel[(num_kv_heads, num_requests, num_splits)](
        query,
        cache,
        block_tables,
        num_keys,
        query if sinks is None else sinks,
        parts,
        masses,
        query.stride(0),
        block_tables.stride(0),
        out.stride(0),
        window,
        *score_factors(scale * key_scale, softcap),
        value_scale,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        PAGE=cache.shape[1],
        BLOCK_ROWS=max(triton.next_power_of_2(group), launch.block_rows),
        BLOCK_KEYS=launch.block_keys,
        BLOCK_DIM=padded_head_dim(head_dim),
        IS_SPLIT=is_split,
        HAS_WINDOW=window > 0,
        HAS_SOFTCAP=softcap > 0,
        HAS_SINKS=sinks is not None,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        maxnreg=launch.max_registers,
    )
    if is_split:
        merge_parts_kernel[(num_heads, num_requests)](
            parts,
            masses,
            query if sinks is None else sinks,
            out,
            out.stride(0),
            num_splits,
            value_scale,
            HEAD_DIM=head_dim,
            BLOCK_DIM=padded_head_dim(head_dim),
            BLOCK_SPLITS=triton.next_power_of_2(num_splits),
            HAS_SINKS=sinks is not None,
            num_warps=4,
        )
    return out
