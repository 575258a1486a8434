"""Decode parts: the list of work of decode attention, which divides the keys of a step among the device's processors.

A step waits for its longest part. So the length of parts follows from the keys of all requests: a long context among short ones
has many parts, and a short one has a single part. The list is made on the device, once a step for each window. Its size depends
only on the number of requests, so a graph can record the launch.
Dims: B requests, K kv heads, G query heads per kv head, W parts that fill the device, M = B + W parts in the list.
"""

from dataclasses import dataclass
from math import isqrt

import torch
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.attention_launch import decode_block_keys

_LEAST_KEYS = 64
"""Smallest average number of keys in a request's parts, or `block_keys` if more: fewer keys are read sooner than merged."""
_NO_WINDOW = 2**31 - 1
_COLUMNS = 5
_PARTS = 32  # parts that a program lists
_REQUESTS = 128  # requests that it counts at once


@dataclass(frozen=True, slots=True)
class PartSizes:
    """The sizes that determine the division of keys: those of a model on a device.

    Attributes:
        num_kv_heads: K.
        group: G.
        num_wanted: W.
        block_keys: the number of keys that a program reads at a time.
    """

    num_kv_heads: int
    group: int
    num_wanted: int
    block_keys: int

    @classmethod
    def on_device(
        cls,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        cache_dtype: torch.dtype,
        device: torch.device,
        num_processors: int,
    ) -> "PartSizes":
        """Return the sizes of a model with these heads and types on a device with this number of streaming multiprocessors."""
        num_wanted = -(-2 * num_processors // num_kv_heads)  # two programs fill a processor
        return cls(num_kv_heads, num_heads // num_kv_heads, num_wanted, decode_block_keys(head_dim, dtype, cache_dtype, device))


@dataclass(frozen=True, slots=True)
class DecodeParts:
    """The parts of one step's requests under one window.

    Attributes:
        table: [M, 5] int32: a request, the begin and the end of its keys in this part, the number of the request's first part,
            and the number of its parts. Request -1: no part; the row's other values are undefined. A request's parts are
            neighbours, in the order of its keys. A request without keys has one part without keys.
        tickets: [B, K] int32, the number of finished parts; 0 between launches of attention.
        num_keys: [B] int32.
        window: the number of keys that a query attends to, its own included; 0: all.
    """

    table: torch.Tensor
    tickets: torch.Tensor
    num_keys: torch.Tensor
    window: int


def list_parts_reference(num_keys: torch.Tensor, sizes: PartSizes, *, window: int = 0) -> DecodeParts:
    """Return the parts of requests with these numbers of keys [B] int32.

    No part has more keys than an equal share of all keys, rounded up to `block_keys`, with one exception. The program that
    finishes last merges all parts of its request, and a part of G heads in float32 has as many bytes as G keys and values of
    16 bits. So n parts are merged in the time in which n * G keys are read, and a request has at most as many parts as make
    this time that of reading a part: n * G = keys / n.
    """
    totals = num_keys.tolist()
    seen = [min(total, window or _NO_WINDOW) for total in totals]
    most_keys = max(-(-sum(seen) // sizes.num_wanted), 1)
    least = max(_LEAST_KEYS, sizes.block_keys)
    found: list[list[int]] = []
    for request, (total, keys) in enumerate(zip(totals, seen, strict=True)):
        wanted = max(min(-(-keys // most_keys), keys // least, isqrt(keys // sizes.group)), 1)
        length = -(-keys // (wanted * sizes.block_keys)) * sizes.block_keys
        begins = range(total - keys, total, length) if keys else [0]
        first = len(found)
        found += [[request, begin, min(begin + length, total), first, len(begins)] for begin in begins]
    table = torch.full((len(totals) + sizes.num_wanted, _COLUMNS), -1, dtype=torch.int32)
    table[: len(found)] = torch.tensor(found, dtype=torch.int32).view(-1, _COLUMNS)
    tickets = torch.zeros((len(totals), sizes.num_kv_heads), dtype=torch.int32)
    return DecodeParts(table.to(num_keys.device), tickets.to(num_keys.device), num_keys, window)


@triton.jit
def divide(keys, most_keys, group, block_keys, LEAST_KEYS: tl.constexpr):
    """Return (number of parts, keys of each part but the last) of requests with `keys` visible keys."""
    most_merged = tl.sqrt_rn((keys // group).to(tl.float32)).to(tl.int32)
    most_read = keys // tl.maximum(block_keys, LEAST_KEYS)
    wanted = tl.minimum(tl.cdiv(keys, most_keys), tl.minimum(most_read, most_merged))
    length = tl.cdiv(keys, tl.maximum(wanted, 1) * block_keys) * block_keys
    return tl.maximum(tl.cdiv(keys, tl.maximum(length, 1)), 1), length


# No specialization: one kernel serves all numbers of requests, and all windows.
_NUMBERS = ["stride_keys", "num_requests", "num_rows", "window", "num_wanted", "num_kv_heads", "group", "block_keys"]


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=["num_keys"])
def list_parts_kernel(
    num_keys,
    parts,
    tickets,
    stride_keys,
    num_requests,
    num_rows,
    window,
    num_wanted,
    num_kv_heads,
    group,
    block_keys,
    LEAST_KEYS: tl.constexpr,
    PARTS: tl.constexpr,
    REQUESTS: tl.constexpr,
):
    """List PARTS parts: each program counts the parts of all requests, and finds the requests of its own rows."""
    sums = tl.zeros([REQUESTS], tl.int64)
    for start in range(0, num_requests, REQUESTS):
        requests = start + tl.arange(0, REQUESTS)
        keys = tl.load(num_keys + requests * stride_keys, mask=requests < num_requests, other=0)
        sums += tl.minimum(keys, window)
    most_keys = tl.maximum(tl.cdiv(tl.sum(sums, 0), num_wanted), 1).to(tl.int32)

    rows = tl.program_id(0) * PARTS + tl.arange(0, PARTS)
    owner = tl.zeros([PARTS], tl.int32)  # the number of requests whose parts all come before a row
    first = tl.zeros([PARTS], tl.int32)  # and the number of their parts
    num_before = 0
    for start in range(0, num_requests, REQUESTS):
        requests = start + tl.arange(0, REQUESTS)
        exists = requests < num_requests
        keys = tl.load(num_keys + requests * stride_keys, mask=exists, other=0)
        counts, _ = divide(tl.minimum(keys, window), most_keys, group, block_keys, LEAST_KEYS)
        counts = tl.where(exists, counts, 0)
        ends = num_before + tl.cumsum(counts, 0)
        is_before = exists[None, :] & (ends[None, :] <= rows[:, None])
        owner += tl.sum(is_before.to(tl.int32), 1)
        first = tl.maximum(first, tl.max(tl.where(is_before, ends[None, :], 0), 1))
        num_before += tl.sum(counts, 0)

    is_part = owner < num_requests
    in_list = rows < num_rows
    total = tl.load(num_keys + owner * stride_keys, mask=is_part, other=0)
    keys = tl.minimum(total, window)
    count, length = divide(keys, most_keys, group, block_keys, LEAST_KEYS)
    begin = total - keys + (rows - first) * length
    row = parts + rows * 5
    tl.store(row, tl.where(is_part, owner, -1), mask=in_list)
    tl.store(row + 1, begin, mask=in_list)
    tl.store(row + 2, tl.minimum(begin + length, total), mask=in_list)
    tl.store(row + 3, first, mask=in_list)
    tl.store(row + 4, count, mask=in_list)
    for head in range(num_kv_heads):
        tl.store(tickets + rows * num_kv_heads + head, 0, mask=rows < num_requests)


def list_parts(num_keys: torch.Tensor, sizes: PartSizes, *, window: int = 0) -> DecodeParts:
    """See list_parts_reference; the numbers may have gaps between them."""
    num_requests, device = len(num_keys), num_keys.device
    num_rows = num_requests + sizes.num_wanted
    table = torch.empty((num_rows, _COLUMNS), dtype=torch.int32, device=device)
    tickets = torch.empty((num_requests, sizes.num_kv_heads), dtype=torch.int32, device=device)
    list_parts_kernel[(triton.cdiv(num_rows, _PARTS),)](
        num_keys,
        table,
        tickets,
        num_keys.stride(0),
        num_requests,
        num_rows,
        window or _NO_WINDOW,
        sizes.num_wanted,
        sizes.num_kv_heads,
        sizes.group,
        sizes.block_keys,
        LEAST_KEYS=_LEAST_KEYS,
        PARTS=_PARTS,
        REQUESTS=_REQUESTS,
        num_warps=4,
    )
    return DecodeParts(table, tickets, num_keys, window)
