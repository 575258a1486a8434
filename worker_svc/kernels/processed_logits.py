"""Processed logits: divides logits by the temperature and masks the ids that truncation leaves out.

One program per row; one pass for the largest logit and one for the values. The weights are those of draw.py, so exactly the ids
that can be drawn stay. Dims: N rows, V ids, S slots.
"""

import torch
import triton
import triton.language as tl

from tetrad.worker_svc.kernels.draw import load_divisor, weight_of


def processed_logits_reference(
    logits: torch.Tensor, thresholds: torch.Tensor, slots: torch.Tensor, temperature: torch.Tensor
) -> torch.Tensor:
    """Return logits / temperature [N, V] float32; -inf where the weight is below the row's threshold.

    Args:
        logits: [N, V], float32, bfloat16 or float16; rows may have gaps between them.
        thresholds: [N or more] float32, see draw_reference.
        slots: [N] int64.
        temperature: [S] float64; 0: greedy, the logits stay as they are.
    """
    values, divisors = logits.float(), temperature[slots].float()[:, None]
    divisors = torch.where(divisors > 0, divisors, 1.0)
    weights = ((values - values.amax(1, keepdim=True)) / divisors).exp()
    return (values / divisors).masked_fill(weights < thresholds[: len(logits), None], float("-inf"))


@triton.jit
def processed_logits_kernel(logits, thresholds, slots, temperature, processed, stride_logits, vocab_size, BLOCK: tl.constexpr):
    """Compute row `program_id(0)`."""
    row = tl.program_id(0).to(tl.int64)
    divisor = load_divisor(temperature, tl.load(slots + row))
    threshold = tl.load(thresholds + row)
    logits += row * stride_logits
    processed += row * vocab_size
    at = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        values = tl.load(logits + start + at, mask=start + at < vocab_size, other=float("-inf")).to(tl.float32)
        best = tl.maximum(best, values)
    top = tl.max(best, 0)
    for start in range(0, vocab_size, BLOCK):
        inside = start + at < vocab_size
        values = tl.load(logits + start + at, mask=inside, other=float("-inf")).to(tl.float32)
        stays = weight_of(values, top, divisor) >= threshold
        tl.store(processed + start + at, tl.where(stays, values / divisor, float("-inf")), mask=inside)


def processed_logits(
    logits: torch.Tensor, thresholds: torch.Tensor, slots: torch.Tensor, temperature: torch.Tensor
) -> torch.Tensor:
    """See processed_logits_reference."""
    num_rows, vocab_size = logits.shape
    assert logits.stride(1) == 1, "a row's logits lie side by side"
    processed = torch.empty((num_rows, vocab_size), dtype=torch.float32, device=logits.device)
    if num_rows:
        block = min(triton.next_power_of_2(vocab_size), 4096)
        processed_logits_kernel[(num_rows,)](
            logits,
            thresholds,
            slots,
            temperature,
            processed,
            logits.stride(0),
            vocab_size,
            BLOCK=block,
            num_warps=max(block // 512, 1),
        )
    return processed
