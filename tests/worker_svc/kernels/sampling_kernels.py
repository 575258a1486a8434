"""What compile_all.py compiles of sampling: kernels, the type of the logits, compile-time values; and types of arguments."""

from tetrad.worker_svc.kernels import (
    argmax,
    bad_words,
    biases,
    draw,
    logprobs,
    penalties,
    thinking_budget,
    token_masks,
    truncation,
)

TYPES = {
    **dict.fromkeys(("chosen", "listed", "ids", "ranks", "masks", "token_ids", "seen", "num_counted"), "*i32"),
    **dict.fromkeys(("peaks", "masses", "thresholds", "logprobs"), "*fp32"),
    **dict.fromkeys(("positions", "seeds", "top_k", "num_prompt_tokens", "entries", "words", "penalised", "budgets"), "*i64"),
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
    (token_masks.token_masks_kernel, "fp32", {"BLOCK": 4096}),
    (biases.biases_kernel, "fp32", {"BLOCK": 128}),
    (bad_words.bad_words_kernel, "fp32", {"BLOCK": 8}),
    (penalties.count_tokens_kernel, "", {"BLOCK": 1024}),
    (penalties.penalties_kernel, "fp32", {"BLOCK": 1024}),
    (thinking_budget.force_ends_kernel, "fp32", {"BLOCK_IDS": 4, "BLOCK": 1024}),
]
