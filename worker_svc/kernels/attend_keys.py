"""The common loop of both attention kernels: rows of queries attend to a range of one sequence's paged keys.

    for each tile of keys:  scores = q k^T;  peak' = max(peak, max(scores));  weights = 2^(scores - peak')
                            mass   = mass   * 2^(peak - peak') + sum(weights)
                            values = values * 2^(peak - peak') + weights v

Dao, "FlashAttention-2" (2023), section 3.1. Every row attends to all keys of most tiles; only tiles at the range's ends need
masks:

    begin        full_begin                full_end        end
      | window cuts   |  every row sees all   |  the diagonal |
"""

import triton
import triton.language as tl


@triton.jit
def attend_keys(
    q,
    positions,
    lasts,
    cache,
    table,
    kv_head,
    begin,
    full_begin,
    full_end,
    end,
    window,
    to_cap,
    to_exponent,
    slopes,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SLOPES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return peak [ROWS], mass [ROWS] and values [ROWS, DIM], float32; a row without keys has a peak of -inf and no mass.

    Args:
        q: [ROWS, DIM], a tensor in registers; zero after HEAD_DIM.
        positions: [ROWS], the row's own key, from which windows and biases count.
        lasts: [ROWS], the last key that a row attends to, at most `end` - 1: its own, or a later one.
        cache: pointer to [num_blocks, PAGE, 2, NUM_KV_HEADS, HEAD_DIM].
        table: pointer to the sequence's block ids.
        kv_head: number of the KV head.
        begin, full_begin, full_end, end: as drawn above; the distances of the first three are whole tiles.
        window: number of keys that a row attends to, its own included; read if HAS_WINDOW. Otherwise full_begin is `begin`.
        to_cap: factor that makes a score twice the argument of tanh; read if HAS_SOFTCAP.
        to_exponent: factor that makes a score, capped or not, an exponent of 2; above 0.
        slopes: [ROWS], slopes of biases: slope * (key - position) is added to scores after the cap; read if HAS_SLOPES.
    """
    if cache.dtype.element_ty.is_fp8() and q.dtype.is_bf16():
        # Half precision represents all fp8 values, and one instruction converts two values; bfloat16 takes four instructions.
        q = q.to(tl.float16)
    if HAS_SLOPES:
        slopes = slopes * (1.4426950408889634 / to_exponent)  # log2(e): in the unit of scores before `to_exponent`
    peak = tl.full([q.shape[0]], float("-inf"), tl.float32)
    mass = tl.zeros([q.shape[0]], tl.float32)
    values = tl.zeros(q.shape, tl.float32)
    if HAS_WINDOW:
        peak, mass, values = fold_tiles(
            q, positions, lasts, peak, mass, values, cache, table, kv_head, begin, full_begin, window, to_cap, to_exponent,
            slopes, NUM_KV_HEADS, HEAD_DIM, PAGE, BLOCK_KEYS, True, HAS_WINDOW, HAS_SOFTCAP, HAS_SLOPES, PRECISION,
        )  # fmt: skip
    peak, mass, values = fold_tiles(
        q, positions, lasts, peak, mass, values, cache, table, kv_head, full_begin, full_end, window, to_cap, to_exponent,
        slopes, NUM_KV_HEADS, HEAD_DIM, PAGE, BLOCK_KEYS, False, HAS_WINDOW, HAS_SOFTCAP, HAS_SLOPES, PRECISION,
    )  # fmt: skip
    return fold_tiles(
        q, positions, lasts, peak, mass, values, cache, table, kv_head, full_end, end, window, to_cap, to_exponent, slopes,
        NUM_KV_HEADS, HEAD_DIM, PAGE, BLOCK_KEYS, True, HAS_WINDOW, HAS_SOFTCAP, HAS_SLOPES, PRECISION,
    )  # fmt: skip


@triton.jit
def fold_tiles(
    q, positions, lasts, peak, mass, values, cache, table, kv_head, begin, end, window, to_cap, to_exponent, slopes,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    MASKED: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFTCAP: tl.constexpr, HAS_SLOPES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the tiles from `begin` to `end`; MASKED: rows attend only to some of their keys, and the last tile may be partial."""
    dims = tl.arange(0, q.shape[1])
    keys = begin + tl.arange(0, BLOCK_KEYS)
    page = tl.load(table + keys // PAGE, mask=keys < end, other=0)
    for _ in range(begin, end, BLOCK_KEYS):
        place = (page.to(tl.int64) * PAGE + keys % PAGE) * (2 * NUM_KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM
        of_key = cache + place[:, None] + dims[None, :]
        inside = (dims < HEAD_DIM)[None, :]
        if MASKED:
            inside = inside & (keys < end)[:, None]
            seen = keys[None, :] <= lasts[:, None]
            if HAS_WINDOW:
                seen = seen & (positions[:, None] - keys[None, :] < window)
                # Keys before the windows of all rows may belong to another request by now, and may be NaN.
                inside = inside & (keys > tl.min(positions, 0) - window)[:, None]
        # Loaded one tile ahead, because the compiler does not move up a load that depends on another load.
        keys += BLOCK_KEYS
        page = tl.load(table + keys // PAGE, mask=keys < end, other=0)
        k = tl.load(of_key, mask=inside, other=0.0).to(q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if HAS_SOFTCAP:
            scores = 2 * tl.sigmoid(scores * to_cap) - 1  # tanh
        if HAS_SLOPES:
            distances = (keys - BLOCK_KEYS)[None, :] - positions[:, None]
            scores += slopes[:, None] * distances.to(tl.float32)
        if MASKED:
            scores = tl.where(seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1) * to_exponent)
        # A row without keys so far has no finite peak to subtract.
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak) if MASKED else new_peak
        weights = tl.exp2(scores * to_exponent - base[:, None])
        fade = tl.exp2(peak - base)
        mass = mass * fade + tl.sum(weights, 1)
        v = tl.load(of_key + NUM_KV_HEADS * HEAD_DIM, mask=inside, other=0.0).to(q.dtype)
        values = tl.dot(weights.to(q.dtype), v, values * fade[:, None], input_precision=PRECISION)
        peak = new_peak
    return peak, mass, values


@triton.jit
def sink_mass(sinks, heads, is_head, peak):
    """Return the mass of heads' sinks, relative to a mass of 1 for the largest score; peaks are exponents of 2.

    Without keys, the peak is -inf, and the mass is relative to a score of 0.
    """
    scores = tl.load(sinks + heads, mask=is_head, other=float("-inf")).to(tl.float32)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    return tl.exp2(scores * 1.4426950408889634 - base)  # log2(e)
