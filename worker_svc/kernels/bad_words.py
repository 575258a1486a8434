"""Bad words: the last token of a forbidden sequence is masked while the output ends with the rest of it.

One program per sequence. It reads the request's tokens in device memory, so that just sampled tokens are included.
Dims: N rows of logits, V ids, S slots, L tokens of the longest request, E sequences, K tokens of the longest of them.
"""

import torch
import triton
import triton.language as tl


def mask_bad_words_reference(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    num_prompt_tokens: torch.Tensor,
    words: torch.Tensor,
) -> None:
    """Mask the tokens that would complete a sequence, in place.

    Args:
        logits: [N, V] float32; rows may have gaps between them.
        token_ids: [S, L] int32, the tokens of all requests.
        slots: [N] int64, slots of the rows' requests.
        positions: [N] int64, positions of the tokens to be sampled; the tokens before them are known.
        num_prompt_tokens: [S] int64; only tokens after the prompt are compared.
        words: [E, 2 + K] int64, contiguous: the row, the number of tokens in the sequence, at least one, and these tokens,
            padded with any values.
    """
    for row, length, *word in words.tolist():
        slot, position = int(slots[row]), int(positions[row])
        output = token_ids[slot, int(num_prompt_tokens[slot]) : position].tolist()
        num_leading = length - 1
        if len(output) >= num_leading and output[len(output) - num_leading :] == word[:num_leading]:
            logits[row, word[num_leading]] = float("-inf")


@triton.jit(do_not_specialize=["stride_words"])
def bad_words_kernel(
    logits,
    token_ids,
    slots,
    positions,
    num_prompt_tokens,
    words,
    stride_logits,
    stride_tokens,
    stride_words,
    BLOCK: tl.constexpr,
):
    """Compute sequence `program_id(0)`."""
    word = words + tl.program_id(0).to(tl.int64) * stride_words
    row = tl.load(word)
    num_leading = tl.load(word + 1) - 1
    slot = tl.load(slots + row)
    at = tl.arange(0, BLOCK)
    is_leading = at < num_leading
    places = tl.load(positions + row) - num_leading + at
    is_output = is_leading & (places >= tl.load(num_prompt_tokens + slot))
    found = tl.load(token_ids + slot * stride_tokens + places, mask=is_output, other=-1)
    wanted = tl.load(word + 2 + at, mask=is_leading, other=-1)
    if tl.sum((is_leading & (found != wanted)).to(tl.int32), 0) == 0:
        tl.store(logits + row * stride_logits + tl.load(word + 2 + num_leading), float("-inf"))


def mask_bad_words(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    num_prompt_tokens: torch.Tensor,
    words: torch.Tensor,
) -> None:
    """See mask_bad_words_reference."""
    num_words, width = words.shape
    assert logits.stride(1) == token_ids.stride(1) == 1 and words.is_contiguous()
    if num_words:
        strides = logits.stride(0), token_ids.stride(0), width
        block = max(triton.next_power_of_2(width), 16)
        bad_words_kernel[(num_words,)](
            logits, token_ids, slots, positions, num_prompt_tokens, words, *strides, BLOCK=block, num_warps=1
        )
