"""Expert groups: groups pairs of tokens and chosen experts by expert, for the products of a mixture of experts.

Each pair counts the pairs before it, so that all pairs find their places in parallel, in one launch. Sizes depend only on the
number of pairs, so a graph can record the launch, and the host does not wait.
Dims: T tokens, C chosen experts of each, N = T * C pairs, E experts, M tiles.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_PAIRS = 32  # pairs that a program places
_OTHERS = 32  # pairs that it compares with them at once


@dataclass(frozen=True, slots=True)
class PairGroups:
    """Pairs grouped by expert.

    Attributes:
        order: [N] int32, the pairs (token * C + choice), grouped by expert and ascending within a group; pairs of absent
            experts are last.
        tiles: [M, 3] int32: an expert, the begin of its pairs in `order`, and their number; expert -1: no pairs.
        rows_of_tile: largest number of pairs in a tile.
    """

    order: torch.Tensor
    tiles: torch.Tensor
    rows_of_tile: int


def num_tiles_of(num_pairs: int, num_experts: int, rows_of_tile: int) -> int:
    """Return the largest possible number of tiles: one per pair, or full tiles and one partial tile per expert."""
    return min(num_pairs, -(-num_pairs // rows_of_tile) + num_experts)


def group_pairs_reference(chosen: torch.Tensor, num_experts: int, rows_of_tile: int) -> PairGroups:
    """Return the groups of chosen experts [T, C] int64.

    Args:
        chosen: the experts; `num_experts` stands for all absent ones, whose pairs are in no tile.
        num_experts: E.
        rows_of_tile: largest number of pairs in a tile.
    """
    experts, order = chosen.flatten().sort(stable=True)
    tiles = torch.full((num_tiles_of(len(order), num_experts, rows_of_tile), 3), -1, dtype=torch.int32, device=chosen.device)
    bounds = torch.searchsorted(experts, torch.arange(num_experts + 1, device=chosen.device)).tolist()
    found = [
        (expert, begin, min(rows_of_tile, bounds[expert + 1] - begin))
        for expert in range(num_experts)
        for begin in range(bounds[expert], bounds[expert + 1], rows_of_tile)
    ]
    tiles[: len(found)] = torch.tensor(found, dtype=torch.int32).view(-1, 3)
    return PairGroups(order.to(torch.int32), tiles, rows_of_tile)


@triton.jit(do_not_specialize=["num_pairs", "num_tiles", "num_experts"])
def group_pairs_kernel(
    chosen,
    order,
    tiles,
    num_pairs,
    num_tiles,
    num_experts,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
    OTHERS: tl.constexpr,
):
    """Place PAIRS pairs; EXPERTS is E or more, a power of two."""
    own = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    is_own = own < num_pairs
    mine = tl.load(chosen + own, mask=is_own, other=0).to(tl.int32)
    experts = tl.arange(0, EXPERTS)
    counts = tl.zeros([EXPERTS], tl.int32)
    num_smaller = tl.zeros([PAIRS], tl.int32)  # pairs of the experts before one's own
    num_earlier = tl.zeros([PAIRS], tl.int32)  # earlier pairs of the same expert
    for start in range(0, num_pairs, OTHERS):
        others = start + tl.arange(0, OTHERS)
        # Places after the last pair have the number of an expert that does not exist.
        theirs = tl.load(chosen + others, mask=others < num_pairs, other=EXPERTS).to(tl.int32)
        counts += tl.sum((experts[:, None] == theirs[None, :]).to(tl.int32), 1)
        num_smaller += tl.sum((theirs[None, :] < mine[:, None]).to(tl.int32), 1)
        is_earlier = (theirs[None, :] == mine[:, None]) & (others[None, :] < own[:, None])
        num_earlier += tl.sum(is_earlier.to(tl.int32), 1)
    tiles_of_experts = tl.where(experts < num_experts, (counts + ROWS - 1) // ROWS, 0)
    place = num_smaller + num_earlier
    tl.store(order + place, own, mask=is_own)
    num_before = tl.sum(tl.where(experts[None, :] < mine[:, None], tiles_of_experts[None, :], 0), 1)
    num_same = tl.sum(tl.where(experts[None, :] == mine[:, None], counts[None, :], 0), 1)
    is_first = is_own & (mine < num_experts) & (num_earlier % ROWS == 0)
    tile = tiles + (num_before + num_earlier // ROWS) * 3
    tl.store(tile, mine, mask=is_first)
    tl.store(tile + 1, place, mask=is_first)
    tl.store(tile + 2, tl.minimum(num_same - num_earlier, ROWS), mask=is_first)
    # There are at most as many tiles as pairs, so for each tile without pairs there is a pair with the same number.
    is_empty = (own >= tl.sum(tiles_of_experts, 0)) & (own < num_tiles)
    tl.store(tiles + own * 3, -1, mask=is_empty)


def group_pairs(chosen: torch.Tensor, num_experts: int, rows_of_tile: int) -> PairGroups:
    """See group_pairs_reference; the other two values of a tile with expert -1 are undefined."""
    num_pairs = chosen.numel()
    assert chosen.is_contiguous()
    order = torch.empty(num_pairs, dtype=torch.int32, device=chosen.device)
    num_tiles = num_tiles_of(num_pairs, num_experts, rows_of_tile)
    tiles = torch.empty((num_tiles, 3), dtype=torch.int32, device=chosen.device)
    if num_pairs:
        experts = max(triton.next_power_of_2(num_experts), 2)
        group_pairs_kernel[(triton.cdiv(num_pairs, _PAIRS),)](
            chosen,
            order,
            tiles,
            num_pairs,
            num_tiles,
            num_experts,
            EXPERTS=experts,
            ROWS=rows_of_tile,
            PAIRS=_PAIRS,
            OTHERS=_OTHERS,
            num_warps=4 if experts <= 128 else 8,
        )
    return PairGroups(order, tiles, rows_of_tile)
