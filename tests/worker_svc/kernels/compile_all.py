"""Compiles every kernel ahead of time, without a GPU: `python compile_all.py 80` prints name, types and cubin's bytes of each.

A program of its own: the tests' process has the interpreter in the kernels' place.
"""

import sys

import sampling_kernels
from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tetrad.worker_svc.kernels import activation, decode_attention, gather_inputs, prefill_attention, rms_norm, rotate_and_cache

GATHERED = {"rows": "*i32", "token_ids": "*i32", "ids": "*i32", "positions": "*i32", "kv_slots": "*i64"}
POINTERS = GATHERED | {"block_tables": "*i32", "first_query": "*i32", "num_keys": "*i32", "tiles": "*i32", "slots": "*i64"}
FLOATS = {
    "cos_sin": "*fp32",
    "partial": "*fp32",
    "eps": "fp32",
    "scale": "fp32",
    "softcap": "fp32",
    "key_scale": "fp32",
    "value_scale": "fp32",
}
TENSORS = {"x", "residual", "weight", "out", "gate_up", "qkv", "query", "logits"}
ATTENTION = {
    "NUM_KV_HEADS": 2,
    "GROUP": 6,
    "HEAD_DIM": 128,
    "PAGE": 16,
    "BLOCK_KEYS": 64,
    "BLOCK_DIM": 128,
    "HAS_SOFTCAP": False,
    "PRECISION": "tf32",
}
WIDE = ATTENTION | {"HEAD_DIM": 256, "BLOCK_DIM": 256, "BLOCK_KEYS": 32, "HAS_SOFTCAP": True}
ROTATION = {"NUM_HEADS": 12, "NUM_KV_HEADS": 2, "HEAD_DIM": 80, "ROTARY_DIM": 32, "BLOCK": 128}
# kernel, types of tensors and cache, compile-time values
KERNELS = [
    (gather_inputs.gather_inputs_kernel, "", "", {"BLOCK": 128}),
    (rms_norm.rms_norm_kernel, "bf16", "", {"ADD": False, "BLOCK": 2048}),
    (rms_norm.rms_norm_kernel, "fp16", "", {"ADD": True, "BLOCK": 1024}),
    (activation.gated_kernel, "bf16", "", {"GELU": False, "BLOCK": 1024}),
    (activation.gated_kernel, "fp32", "", {"GELU": True, "BLOCK": 1024}),
    (rotate_and_cache.rotate_and_cache_kernel, "bf16", "bf16", ROTATION),
    (rotate_and_cache.rotate_and_cache_kernel, "bf16", "fp8e4nv", ROTATION),
    (prefill_attention.prefill_attention_kernel, "bf16", "bf16", ATTENTION | {"BLOCK_ROWS": 64}),
    (prefill_attention.prefill_attention_kernel, "fp16", "fp8e4nv", WIDE | {"BLOCK_ROWS": 64}),
    (prefill_attention.prefill_attention_kernel, "fp32", "fp32", ATTENTION | {"BLOCK_ROWS": 16, "PRECISION": "ieee"}),
    (decode_attention.decode_attention_kernel, "bf16", "bf16", ATTENTION | {"BLOCK_ROWS": 16}),
    (decode_attention.decode_attention_kernel, "bf16", "fp8e4nv", WIDE | {"BLOCK_ROWS": 16}),
    (decode_attention.merge_parts_kernel, "bf16", "", {"HEAD_DIM": 128, "BLOCK_DIM": 128, "BLOCK_SPLITS": 16}),
    *((kernel, tensors, "", values) for kernel, tensors, values in sampling_kernels.KERNELS),
]


def type_of(name: str, tensors: str, cache: str) -> str:
    """Return the type of an argument: a pointer, a float or an integer."""
    if name == "cache":
        return f"*{cache}"
    return f"*{tensors}" if name in TENSORS else {**POINTERS, **FLOATS, **sampling_kernels.TYPES}.get(name, "i32")


def main() -> None:
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    for kernel, tensors, cache, values in KERNELS:
        # Ampere has no type for fp8e4nv: its caches are fp8e5.
        held = "fp8e5" if cache == "fp8e4nv" and target.arch < 89 else cache
        signature = {name: "constexpr" if name in values else type_of(name, tensors, held) for name in kernel.arg_names}
        compiled = compile_kernel(ASTSource(kernel, signature=signature, constexprs=values), target=target)
        sys.stdout.write(f"{kernel.__name__} {tensors or '-'} {held or '-'} {len(compiled.asm['cubin'])}\n")


if __name__ == "__main__":
    main()
