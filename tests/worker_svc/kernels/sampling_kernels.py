"""The sampling kernels for compile_all.py: kernels, types of their tensors, compile-time values."""

from tetrad.worker_svc.kernels import (
    argmax,
    bad_words,
    biases,
    draw,
    logprobs,
    penalties,
    processed_logits,
    thinking_budget,
    token_masks,
    truncation,
)

TYPES = {
    **dict.fromkeys(("chosen", "listed", "ids", "ranks", "masks", "token_ids", "seen", "num_counted"), "i32"),
    **dict.fromkeys(("peaks", "masses", "thresholds", "logprobs", "processed"), "fp32"),
    **dict.fromkeys(("slots", "positions", "seeds", "top_k", "num_prompt_tokens"), "i64"),
    **dict.fromkeys(("entries", "words", "penalised", "budgets"), "i64"),
    **dict.fromkeys(("temperature", "top_p", "min_p"), "fp64"),
}
FLOAT, HALF = TYPES | {"logits": "fp32"}, TYPES | {"logits": "bf16"}
BLOCKS = {"BLOCK": 256, "BLOCKS_AT_ONCE": 16}
KERNELS = [
    (argmax.argmax_kernel, HALF, {"BLOCK": 8192}),
    (argmax.argmax_kernel, FLOAT, {"BLOCK": 8192}),
    (draw.block_masses_kernel, HALF, BLOCKS),
    (draw.draw_kernel, FLOAT, {"BLOCK": 256, "ALL_BLOCKS": 1024}),
    (truncation.truncation_kernel, HALF, BLOCKS | {"ALL_BLOCKS": 1024}),
    (logprobs.gather_logprobs_kernel, HALF, {"BLOCK": 4096, "IDS_AT_ONCE": 32, "HAS_LOGITS": False}),
    (logprobs.gather_logprobs_kernel, FLOAT, {"BLOCK": 4096, "IDS_AT_ONCE": 32, "HAS_LOGITS": True}),
    (processed_logits.processed_logits_kernel, FLOAT, {"BLOCK": 4096}),
    (token_masks.token_masks_kernel, FLOAT, {"BLOCK": 4096}),
    (biases.biases_kernel, FLOAT, {"BLOCK": 128}),
    (bad_words.bad_words_kernel, FLOAT, {"BLOCK": 16}),
    (penalties.count_tokens_kernel, FLOAT, {"BLOCK": 1024}),
    (penalties.penalties_kernel, FLOAT, {"BLOCK": 1024}),
    (thinking_budget.force_ends_kernel, FLOAT, {"BLOCK_IDS": 16, "BLOCK": 1024}),
]
