"""Attention masks in torch, shared by the references of the attention kernels."""

import torch


def visible(query_positions: torch.Tensor, num_keys: int, window: int, ends: torch.Tensor | None = None) -> torch.Tensor:
    """Return [Q, num_keys] bool: true for keys at or before the query, and less than `window` before it (0: no window).

    `ends` [Q]: keys below these are seen, also those behind the query; None: none behind it.
    """
    keys = torch.arange(num_keys, device=query_positions.device)
    distance = query_positions[:, None] - keys
    is_before = distance >= 0 if ends is None else keys < ends[:, None]
    return is_before & ((distance < window) if window else torch.ones_like(distance, dtype=torch.bool))


def linear_biases(slopes: torch.Tensor | None, query_positions: torch.Tensor, num_keys: int) -> torch.Tensor | None:
    """Return the biases [H, Q, num_keys] of heads with slopes [H]: slope * (position of the key - position of the query)."""
    if slopes is None:
        return None
    keys = torch.arange(num_keys, device=query_positions.device)
    return slopes[:, None, None] * (keys - query_positions[:, None])


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seen: torch.Tensor,
    *,
    scale: float,
    softcap: float,
    sinks: torch.Tensor | None = None,
    biases: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return softmax(softcap(q k^T * scale) + biases) v in float32, with the sink among the scores.

    Args:
        query: [Q, H, D].
        keys, values: [L, K, D]; H is a multiple of K.
        seen: [Q, L] bool, with at least one true value per row.
        scale: factor of the scores.
        softcap: scores become softcap * tanh(scores / softcap); 0: no cap.
        sinks: [H] float32, an extra score of each head, without a value; None: no sinks.
        biases: [H, Q, L] float32; None: no biases.
    """
    group = query.shape[1] // keys.shape[1]
    keys, values = (part.float().repeat_interleave(group, 1) for part in (keys, values))
    scores = torch.einsum("qhd,lhd->hql", query.float(), keys) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if biases is not None:
        scores = scores + biases
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:2], 1)], -1)
    weights = scores.softmax(-1)[..., : len(keys)]
    return torch.einsum("hql,lhd->qhd", weights, values)


def pages_of(cache: torch.Tensor, table: torch.Tensor, num_keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values [num_keys, K, D] float32 of one sequence.

    Args:
        cache: [num_blocks, block_size, 2, K, D].
        table: [P] block ids; the first ones are in use.
        num_keys: number of tokens.
    """
    in_use = table[: -(-num_keys // cache.shape[1])].long()
    both = cache[in_use].flatten(0, 1)[:num_keys].float()
    return both[:, 0], both[:, 1]
