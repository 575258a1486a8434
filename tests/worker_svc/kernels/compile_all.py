"""Compiles every kernel ahead of time, without a GPU, and prints name, types and cubin's bytes of each form.

`python compile_all.py 80 all`; `one` instead of `all` compiles only the last form of each kernel. A program of its own: in the
tests' process the interpreter replaces the kernels.
"""

import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any

import expert_kernels
import lora_kernels
import product_kernels
import sampling_kernels
from triton import compile as compile_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tetrad.worker_svc.kernels import (
    activation,
    advance_drafts,
    decode_attention,
    decode_parts,
    gather_inputs,
    prefill_attention,
    rms_norm,
    rotate_and_cache,
)
from tetrad.worker_svc.kernels.attention_launch import find_launch

GATHERED = {"rows": "*i32", "token_ids": "*i32", "ids": "*i32", "positions": "*i32", "kv_slots": "*i64"}
POINTERS = GATHERED | {"block_tables": "*i32", "first_query": "*i32", "num_keys": "*i32", "tiles": "*i32", "slots": "*i64"}
POINTERS |= {"parts": "*i32", "shifts": "*i32", "ends": "*i32", "tickets": "*i32", "drafts": "*i32", "table": "*i32"}
FLOATS = {
    "cos_sin": "*fp32",
    "partial": "*fp32",
    "masses": "*fp32",
    "sinks": "*fp32",
    "slopes": "*fp32",
    "eps": "fp32",
    "to_cap": "fp32",
    "to_exponent": "fp32",
    "key_scale": "fp32",
    "value_scale": "fp32",
}
TENSORS = {"x", "residual", "weight", "out", "gate_up", "qkv", "query", "query_norm", "key_norm"}
ATTENTION = {
    "NUM_KV_HEADS": 2,
    "GROUP": 6,
    "HEAD_DIM": 128,
    "PAGE": 16,
    "BLOCK_DIM": 128,
    "HAS_SOFTCAP": False,
    "HAS_SINKS": False,
    "HAS_SLOPES": False,
    "PRECISION": "tf32",
}
WIDE = ATTENTION | {"HEAD_DIM": 256, "BLOCK_DIM": 256, "HAS_SOFTCAP": True, "HAS_SINKS": True}
BIASED = ATTENTION | {"GROUP": 1, "HAS_SLOPES": True}
WINDOW, NO_WINDOW = {"HAS_WINDOW": True}, {"HAS_WINDOW": False}
MERGE = {"MERGED_ROWS": 8, "MERGED_PARTS": 4}
ROTATION = {"NUM_HEADS": 12, "NUM_KV_HEADS": 2, "HEAD_DIM": 80, "ROTARY_DIM": 32, "HAS_NORMS": False, "BLOCK": 128}
NUMBERS = {"eps": "fp32", "key_scale": "fp32", "value_scale": "fp32"}
DEPENDENT_FROM = 90
VALUE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8e4nv": 1, "fp8e5": 1}
# kernel, types of tensors and cache, compile-time values
KERNELS = [
    (gather_inputs.gather_inputs_kernel, "", "", {"BLOCK": 128, "HAS_SHIFTS": False}),
    (gather_inputs.gather_inputs_kernel, "", "", {"BLOCK": 128, "HAS_SHIFTS": True}),
    (advance_drafts.advance_drafts_kernel, "", "", {"BLOCK": 128}),
    (rms_norm.rms_norm_kernel, "bf16", "", {"ADD": False, "BLOCK": 2048}),
    (rms_norm.rms_norm_kernel, "fp16", "", {"ADD": True, "BLOCK": 1024}),
    (activation.gated_kernel, "bf16", "", {"GELU": False, "BLOCK": 1024}),
    (activation.gated_kernel, "fp32", "", {"GELU": True, "BLOCK": 1024}),
    (rotate_and_cache.rotate_and_cache_kernel, "bf16", "bf16", ROTATION),
    (rotate_and_cache.rotate_and_cache_kernel, "bf16", "fp8e4nv", ROTATION | {"HAS_NORMS": True}),
    (prefill_attention.prefill_attention_kernel, "bf16", "bf16", ATTENTION | NO_WINDOW),
    (prefill_attention.prefill_attention_kernel, "fp16", "fp8e4nv", WIDE | WINDOW),
    (prefill_attention.prefill_attention_kernel, "fp32", "fp32", ATTENTION | NO_WINDOW | {"PRECISION": "ieee"}),
    (prefill_attention.prefill_attention_kernel, "bf16", "bf16", BIASED | NO_WINDOW),
    (prefill_attention.prefill_attention_kernel, "bf16", "bf16", WIDE | WINDOW | {"HAS_ENDS": True}),
    (decode_parts.list_parts_kernel, "", "", {"LEAST_KEYS": 64, "PARTS": 32, "REQUESTS": 128}),
    (decode_attention.decode_attention_kernel, "bf16", "bf16", ATTENTION | MERGE),
    (decode_attention.decode_attention_kernel, "bf16", "fp8e4nv", WIDE | MERGE),
    (decode_attention.decode_attention_kernel, "bf16", "bf16", BIASED | MERGE | {"MERGED_ROWS": 1, "MERGED_PARTS": 32}),
]


def type_of(name: str, tensors: str, cache: str) -> str:
    """Return the type of an argument: a pointer, a float or an integer."""
    if name == "cache":
        return f"*{cache}"
    return f"*{tensors}" if name in TENSORS else {**POINTERS, **FLOATS}.get(name, "i32")


def compile_typed(kernel, types: dict[str, str], values: dict[str, object], target: GPUTarget) -> None:
    """Compile a kernel of product_kernels.py or sampling_kernels.py, if the device has the types of its tensors."""
    if "IS_DEPENDENT" in kernel.arg_names:
        values = values | {"IS_DEPENDENT": target.arch >= DEPENDENT_FROM}
    known = NUMBERS | {name: f"*{each}" for name, each in types.items()}
    signature = {name: "constexpr" if name in values else known.get(name, "i32") for name in kernel.arg_names}
    if f"*{product_kernels.FP8}" in signature.values() and target.arch < 89:
        return
    compiled = compile_kernel(ASTSource(kernel, signature=signature, constexprs=values), target=target)
    held = " ".join(types[name] for name in ("x", "weight", "logits") if name in types)
    sys.stdout.write(f"{kernel.__name__} {held} {len(compiled.asm['cubin'])}\n")


def main() -> None:
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    chosen = last_forms if sys.argv[2] == "one" else list
    for kernel, tensors, cache, values in chosen(KERNELS):
        # Ampere has no type for fp8e4nv: its caches are fp8e5.
        held = "fp8e5" if cache == "fp8e4nv" and target.arch < 89 else cache
        compiled = compiled_for(target, kernel, tensors, held, *launch_of(kernel, held, values, target.arch))
        sys.stdout.write(f"{kernel.__name__} {tensors or '-'} {held or '-'} {len(compiled.asm['cubin'])}\n")
    lists = product_kernels, sampling_kernels, lora_kernels, expert_kernels
    for kernel, types, values in chosen(chain.from_iterable(each.KERNELS for each in lists)):
        compile_typed(kernel, types, values, target)


def last_forms(forms: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the last form of each kernel."""
    return list({form[0].__name__: form for form in forms}.values())


def launch_of(kernel: Any, cache: str, values: dict[str, Any], arch: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a kernel's compile-time values and options: those of the attention kernels are completed by their table."""
    name = kernel.__name__.removesuffix("_attention_kernel")
    if name not in ("prefill", "decode"):
        return values, {}
    launch = find_launch(name, values["HEAD_DIM"], VALUE_BYTES[cache], divmod(arch, 10))
    tile = {"BLOCK_ROWS": launch.block_rows, "BLOCK_KEYS": launch.block_keys}
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages, "maxnreg": launch.max_registers}
    own = {"IS_DEPENDENT": arch >= DEPENDENT_FROM} if name == "decode" else {"HAS_ENDS": values.get("HAS_ENDS", False)}
    return values | tile | own, options


def compiled_for(
    target: GPUTarget, kernel: Any, tensors: str, cache: str, values: dict[str, Any], options: dict[str, Any]
) -> Any:
    """Return the kernel compiled as a launch would, whose tensors begin at multiples of 16 bytes, and their rows too."""
    types = {name: "constexpr" if name in values else type_of(name, tensors, cache) for name in kernel.arg_names}
    free = {param.name for param in kernel.params if param.do_not_specialize_on_alignment}
    multiples = [name for name, kind in types.items() if kind.startswith("*") or name in ("stride_query", "stride_out")]
    aligned = [name for name in multiples if name not in free]
    attrs = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, signature=types, constexprs=values, attrs=attrs)
    return compile_kernel(source, target=target, options=options)


if __name__ == "__main__":
    main()
