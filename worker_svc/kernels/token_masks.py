"""Token masks: applies bitmasks of the ids that rows may sample, from grammars and lists of allowed ids.

Dims: N rows of logits, M masks, V ids, W words of 32 bits.
"""

import torch
import triton
import triton.language as tl


def apply_token_masks_reference(logits: torch.Tensor, masks: torch.Tensor) -> None:
    """Set the logits of ids that are not allowed to -inf, in place.

    Args:
        logits: [N, V] float32; rows may have gaps between them.
        masks: [M, 1 + W] int32: the row (all rows differ) and words; bit i of word w allows id 32 * w + i. Ids after the last
            word are not allowed.
    """
    rows, words = masks[:, 0].long(), masks[:, 1:]
    bits = (words[:, :, None] >> torch.arange(32, device=masks.device)) & 1
    is_allowed = torch.zeros((len(rows), logits.shape[1]), dtype=torch.bool, device=logits.device)
    width = min(32 * words.shape[1], logits.shape[1])
    is_allowed[:, :width] = bits.flatten(1)[:, :width] == 1
    logits[rows] = torch.where(is_allowed, logits[rows], float("-inf"))


@triton.jit(do_not_specialize=["num_words"])
def token_masks_kernel(logits, masks, stride_logits, vocab_size, num_words, BLOCK: tl.constexpr):
    """Compute part `program_id(1)`, of BLOCK ids, of mask `program_id(0)`."""
    mask = masks + tl.program_id(0).to(tl.int64) * (1 + num_words)
    row = tl.load(mask).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    words = tl.load(mask + 1 + ids // 32, mask=ids // 32 < num_words, other=0)
    is_forbidden = ((words >> (ids % 32)) & 1) == 0
    tl.store(logits + row * stride_logits + ids, float("-inf"), mask=is_forbidden & (ids < vocab_size))


def apply_token_masks(logits: torch.Tensor, masks: torch.Tensor) -> None:
    """See apply_token_masks_reference."""
    vocab_size, num_words = logits.shape[1], masks.shape[1] - 1
    assert logits.stride(1) == 1 and masks.is_contiguous() and masks.dtype == torch.int32
    if len(masks):
        block = min(triton.next_power_of_2(vocab_size), 4096)
        grid = (len(masks), triton.cdiv(vocab_size, block))
        token_masks_kernel[grid](logits, masks, logits.stride(0), vocab_size, num_words, BLOCK=block, num_warps=4)
