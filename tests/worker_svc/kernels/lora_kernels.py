"""The LoRA kernels for compile_all.py: kernels, types of their tensors, compile-time values."""

from tetrad.worker_svc.kernels import lora

ROWS = {"order": "i32", "tiles": "i32", "output_tiles": "i32"}
SHRINK = {"ROWS": 16, "OUTPUTS": 32, "COLUMNS": 128, "PRECISION": "tf32"}
EXPAND = {"SPLITS": 8, "RANK": 16, "RANKS": 16, "ROWS": 16, "OUTPUTS": 64, "PRECISION": "tf32"}


def types_of(x: str, y: str) -> dict[str, str]:
    """Return the types of the tensors: activations and adapters, and the outputs that are added to."""
    return ROWS | {"x": x, "a": x, "b": x, "y": y, "out": "fp32", "shrunk": "fp32"}


KERNELS = [
    (lora.shrink_kernel, types_of("bf16", "bf16"), SHRINK),
    (lora.shrink_kernel, types_of("fp32", "fp32"), SHRINK | {"COLUMNS": 64, "PRECISION": "ieee"}),
    (lora.shrink_kernel, types_of("bf16", "bf16"), SHRINK | {"ROWS": 64, "OUTPUTS": 64}),
    (lora.expand_kernel, types_of("bf16", "bf16"), EXPAND),
    (lora.expand_kernel, types_of("bf16", "fp32"), EXPAND | {"SPLITS": 1, "RANK": 256, "RANKS": 64, "ROWS": 64}),
    (lora.expand_kernel, types_of("fp32", "fp32"), EXPAND | {"RANK": 512, "RANKS": 64, "PRECISION": "ieee"}),
]
