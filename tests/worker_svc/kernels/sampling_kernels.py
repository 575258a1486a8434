"""What compile_all.py compiles of sampling: kernels, the type of the logits, compile-time values; and types of arguments."""

from tetrad.worker_svc.kernels import argmax, draw, logprobs, truncation

TYPES = {
    **dict.fromkeys(("chosen", "listed", "ids", "ranks"), "*i32"),
    **dict.fromkeys(("peaks", "masses", "thresholds", "logprobs"), "*fp32"),
    **dict.fromkeys(("positions", "seeds", "top_k"), "*i64"),
    **dict.fromkeys(("temperature", "top_p", "min_p"), "*fp64"),
}
BLOCKS = {"BLOCK": 256, "BLOCKS_AT_ONCE": 16}
KERNELS = [
    (argmax.argmax_kernel, "bf16", {"BLOCK": 8192}),
    (argmax.argmax_kernel, "fp32", {"BLOCK": 8192}),
    (draw.block_masses_kernel, "bf16", BLOCKS),
    (draw.draw_kernel, "fp32", {"BLOCK": 256, "ALL_BLOCKS": 1024}),
    (truncation.truncation_kernel, "bf16", BLOCKS | {"ALL_BLOCKS": 1024}),
    (logprobs.gather_logprobs_kernel, "bf16", {"BLOCK": 4096, "IDS_AT_ONCE": 16}),
]
