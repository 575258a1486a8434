"""Attention of one query per request over paged keys and values, whose programs take parts of the keys from a list.

A decode step reads every key once and computes little, so all processors of the device have to read: each program computes one
part of a request's keys ("Flash-Decoding", Dao et al., 2023). The list of parts (decode_parts.py) is data, so one graph serves
all lengths. A request of several parts counts its finished ones, as split_k.py does: the program that finishes last merges the
parts in the order of the list, so results are the same bits every time, in one launch.
Dims: B requests, H query heads, K kv heads, G = H / K, D head size, P pages per request, M parts in the list.
"""

import torch
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.attend_keys import attend_keys, sink_mass
from tetrad.worker_svc.kernels.attention_launch import Launch, launch_for, padded_head_dim, score_factors
from tetrad.worker_svc.kernels.attention_mask import attend, linear_biases, pages_of, visible
from tetrad.worker_svc.kernels.decode_parts import DecodeParts
from tetrad.worker_svc.kernels.dependent_launch import dependent_launch, wait_for_predecessor

_MERGED = 32
"""Vectors [D] (parts times heads) that a merge reads at a time."""


def decode_attention_reference(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    parts: DecodeParts,
    *,
    scale: float,
    softcap: float = 0.0,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    sinks: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the attention [B, H, D], in the query's type; zeros for requests without keys, which are padding.

    Args:
        query: [B, H, D]; requests may have gaps between them.
        cache: [num_blocks, block_size, 2, K, D], contiguous; it contains the step's keys and values.
        block_tables: [B, P] int32.
        parts: the numbers of keys, the query's own key included; the window; and their division, which changes only roundings.
        scale, softcap, key_scale, value_scale, sinks, slopes, out: see prefill_attention.
    """
    out = torch.zeros_like(query) if out is None else out.zero_()
    for row, total in enumerate(parts.num_keys.tolist()):
        if total:
            keys, values = pages_of(cache, block_tables[row], total)
            position = torch.tensor([total - 1], device=query.device)
            seen, biases = visible(position, total, parts.window), linear_biases(slopes, position, total)
            one = query[row : row + 1]
            keys, values = keys * key_scale, values * value_scale
            found = attend(one, keys, values, seen, scale=scale, softcap=softcap, sinks=sinks, biases=biases)
            out[row] = found[0].to(out.dtype)
    return out


@triton.jit(do_not_specialize_on_alignment=["block_tables"])
def decode_attention_kernel(
    query,
    cache,
    block_tables,
    parts,
    sinks,
    slopes,
    out,
    partial,
    masses,
    tickets,
    stride_query,
    stride_table,
    stride_out,
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
    MERGED_ROWS: tl.constexpr,
    MERGED_PARTS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_DEPENDENT: tl.constexpr,
):
    """Compute kv head `program_id(0)` of part `program_id(1)`.

    Heads are the first grid dimension, because their keys are neighbours in a page. A request's only part is written to `out`
    [B, H, D]. Otherwise its part goes to `partial` [M, H, D], and the base-2 logarithm of its mass to `masses` [M, H], both
    float32, until the request's last program merges them.
    """
    wait_for_predecessor(IS_DEPENDENT)
    kv_head = tl.program_id(0)
    number = tl.program_id(1).to(tl.int64)
    part = parts + number * 5
    request = tl.load(part).to(tl.int64)
    if request < 0:
        return
    begin, end, first, count = tl.load(part + 1), tl.load(part + 2), tl.load(part + 3), tl.load(part + 4)
    rows = tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    is_row = rows < GROUP
    inside = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    heads = kv_head * GROUP + rows
    at = request * stride_query + heads * HEAD_DIM
    q = tl.load(query + at[:, None] + dims[None, :], mask=inside, other=0.0)
    slope = 0.0
    if HAS_SLOPES:
        slope = tl.load(slopes + heads, mask=is_row, other=0.0)
    position = tl.full([BLOCK_ROWS], 0, tl.int32) + end - 1
    peak, mass, values = attend_keys(
        q,
        position,
        position,
        cache,
        block_tables + request * stride_table,
        kv_head,
        begin,
        begin,
        begin + (end - begin) // BLOCK_KEYS * BLOCK_KEYS,
        end,
        0,  # no window: the list has only visible keys
        to_cap,
        to_exponent,
        slope,
        NUM_KV_HEADS,
        HEAD_DIM,
        PAGE,
        BLOCK_KEYS,
        False,
        HAS_SOFTCAP,
        HAS_SLOPES,
        PRECISION,
    )
    if count == 1:
        if HAS_SINKS:
            mass += sink_mass(sinks, heads, is_row, peak)
        # Without keys, the result is zero: the request is padding.
        values *= (value_scale / tl.where(mass == 0, 1.0, mass))[:, None]
        tl.store(out + (request * stride_out + heads * HEAD_DIM)[:, None] + dims[None, :], values, mask=inside)
    else:
        if HAS_SLOPES:  # biases of a part are relative to its last key; the query is at the last key of the last part
            last_end = tl.load(parts + (first + count - 1) * 5 + 2)
            peak += slope * (end - last_end).to(tl.float32) * 1.4426950408889634  # log2(e)
        finish_part(
            peak, mass, values, partial, masses, tickets + request * NUM_KV_HEADS + kv_head, sinks, out + request * stride_out,
            number, kv_head, first, count, value_scale,
            NUM_KV_HEADS, GROUP, HEAD_DIM, BLOCK_ROWS, BLOCK_DIM, MERGED_ROWS, MERGED_PARTS, HAS_SINKS,
        )  # fmt: skip


@triton.jit
def finish_part(
    peak, mass, values, partial, masses, ticket, sinks, out, number, kv_head, first, count, value_scale,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr, MERGED_ROWS: tl.constexpr, MERGED_PARTS: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Write one of several parts of a request; the program that finishes last merges all of them.

    Args:
        peak, mass, values: the results of attend_keys for this part.
        partial, masses: see decode_attention_kernel.
        ticket: pointer to the number of finished parts of this request and kv head.
        out: pointer to the request's [H, D].
        number: the row of this part in the list.
        first, count: the request's parts.
    """
    rows = tl.arange(0, BLOCK_ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    is_row = rows < GROUP
    place = number * (NUM_KV_HEADS * GROUP) + kv_head * GROUP + rows
    inside = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    tl.store(partial + place[:, None] * HEAD_DIM + dims[None, :], values / mass[:, None], mask=inside)
    tl.store(masses + place, peak + tl.log2(mass), mask=is_row)
    tl.debug_barrier()  # the whole part is written before its ticket is taken
    if tl.atomic_add(ticket, 1, sem="acq_rel") == count - 1:
        for row in range(0, GROUP, MERGED_ROWS):
            merge_parts(
                partial, masses, sinks, out, kv_head * GROUP, row, first, count, value_scale,
                NUM_KV_HEADS * GROUP, GROUP, HEAD_DIM, BLOCK_DIM, MERGED_ROWS, MERGED_PARTS, HAS_SINKS,
            )  # fmt: skip
        tl.store(ticket, 0)


@triton.jit
def merge_parts(
    partial, masses, sinks, out, first_head, first_row, first, count, value_scale,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_DIM: tl.constexpr,
    MERGED_ROWS: tl.constexpr, MERGED_PARTS: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Merge the parts of some heads of one request by their maxima and sums, MERGED_PARTS at a time.

    Args:
        partial, masses: see decode_attention_kernel. They are read past the processor's L1 cache, because other processors
            wrote the values.
        out: pointer to the request's [H, D].
        first_head: the first query head of the kv head.
        first_row: the first merged row of the group.
        first, count: the request's parts.
    """
    rows = first_row + tl.arange(0, MERGED_ROWS)
    dims = tl.arange(0, BLOCK_DIM)
    is_row, in_head = rows < GROUP, dims < HEAD_DIM
    heads = first_head + rows
    peak = tl.full([MERGED_ROWS], float("-inf"), tl.float32)
    mass = tl.zeros([MERGED_ROWS], tl.float32)
    values = tl.zeros([MERGED_ROWS, BLOCK_DIM], tl.float32)
    for start in range(first, first + count, MERGED_PARTS):
        parts = start + tl.arange(0, MERGED_PARTS)
        exists = (parts < first + count)[:, None] & is_row[None, :]
        place = parts.to(tl.int64)[:, None] * NUM_HEADS + heads[None, :]
        logarithms = tl.load(masses + place, mask=exists, other=float("-inf"), cache_modifier=".cg")
        inside = exists[:, :, None] & in_head[None, None, :]
        source = partial + place[:, :, None] * HEAD_DIM + dims[None, None, :]
        read = tl.load(source, mask=inside, other=0.0, cache_modifier=".cg")
        new_peak = tl.maximum(peak, tl.max(logarithms, 0))
        # Rows after the group's last one have no finite peak to subtract.
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp2(logarithms - base[None, :])
        fade = tl.exp2(peak - base)
        mass = mass * fade + tl.sum(weights, 0)
        values = values * fade[:, None] + tl.sum(read * weights[:, :, None], 0)
        peak = new_peak
    if HAS_SINKS:
        mass += sink_mass(sinks, heads, is_row, peak)
    values *= (value_scale / tl.where(is_row, mass, 1.0))[:, None]
    tl.store(out + heads[:, None] * HEAD_DIM + dims[None, :], values, mask=is_row[:, None] & in_head[None, :])


def decode_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_tables: torch.Tensor,
    parts: DecodeParts,
    *,
    scale: float,
    softcap: float = 0.0,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    sinks: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    launch: Launch | None = None,
) -> torch.Tensor:
    """See decode_attention_reference; `launch` None: the launch parameters in the table for this device."""
    num_requests, num_heads, head_dim = query.shape
    num_kv_heads, num_parts = cache.shape[3], len(parts.table)
    assert query.stride()[1:] == (head_dim, 1) and cache.is_contiguous() and block_tables.stride(1) == 1
    assert num_heads % num_kv_heads == 0 and parts.tickets.shape == (num_requests, num_kv_heads)
    assert scale * key_scale > 0, "the largest score is to have the largest exponent"
    out = torch.empty((num_requests, num_heads, head_dim), dtype=query.dtype, device=query.device) if out is None else out
    assert out.shape == query.shape and out.stride()[1:] == (head_dim, 1)
    if not num_requests:
        return out
    partial, masses = (
        torch.empty((num_parts, num_heads, *rest), dtype=torch.float32, device=query.device) for rest in ((head_dim,), ())
    )
    group = num_heads // num_kv_heads
    merged_rows = min(triton.next_power_of_2(group), _MERGED)
    launch = launch or launch_for("decode", query, cache)
    decode_attention_kernel[(num_kv_heads, num_parts)](
        query,
        cache,
        block_tables,
        parts.table,
        query if sinks is None else sinks,
        query if slopes is None else slopes,
        out,
        partial,
        masses,
        parts.tickets,
        query.stride(0),
        block_tables.stride(0),
        out.stride(0),
        *score_factors(scale * key_scale, softcap),
        value_scale,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        PAGE=cache.shape[1],
        BLOCK_ROWS=max(triton.next_power_of_2(group), launch.block_rows),
        BLOCK_KEYS=launch.block_keys,
        BLOCK_DIM=padded_head_dim(head_dim),
        MERGED_ROWS=merged_rows,
        MERGED_PARTS=_MERGED // merged_rows,
        HAS_SOFTCAP=softcap > 0,
        HAS_SINKS=sinks is not None,
        HAS_SLOPES=slopes is not None,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        maxnreg=launch.max_registers,
        **dependent_launch(query.device),
    )
    return out
