"""The products with quantized weights for compile_all.py: types of pointers, and values, of each launch."""

from tetrad.worker_svc.kernels import added_product, byte_matmul, int4_matmul, normed_products, quantize_rows, scaled_stream

FP8 = "fp8e4nv"
"""Only from compute capability 8.9 on; before, its bits are uint8."""

FEW = {"ROWS": 16, "OUTPUTS": 32, "COLUMNS": 128, "IS_SPLIT": True}
MANY = {"ROWS": 64, "OUTPUTS": 64, "COLUMNS": 64, "IS_SPLIT": False}
FLOATS = {"HAS_BIAS": True, "PRECISION": "tf32"}
INT4 = FLOATS | {"HAS_TABLE": False}
TABLE = {"HAS_TABLE": True, "GROUP": 32, "COLUMNS": 32}
BYTES = FLOATS | {"GROUP": 0, "IS_EVEN": True, "HAS_ROW_SCALES": False, "MAX_IMPRECISE": 0}
BLOCKS = BYTES | {"GROUP": 128, "IS_EVEN": False, "HAS_BIAS": False}
OF_FP8 = {"HAS_ROW_SCALES": True, "MAX_IMPRECISE": 64}
SCALES = {"scales": "fp32", "row_scales": "fp32", "partial": "fp32", "tickets": "i32", "packed": "u8", "zeros": "u8"}

ROWS = dict.fromkeys(("x", "residual", "scaled", "norm", "weight", "bias", "query", "out"), "bf16")
ROWS |= {"squares": "fp32", "partial": "fp32", "tickets": "i32"}
QKV = ROWS | {"cos_sin": "fp32", "slots": "i64"}
WHOLE = {"ROWS": 16, "OUTPUTS": 32, "COLUMNS": 128, "IS_EVEN": True, "PRECISION": "tf32", "PREFETCHED": 512}
HEADS = {"QUERY_SIZE": 1536, "KEY_SIZE": 256, "HEAD_DIM": 128, "ROTARY_DIM": 128, "HAS_BIAS": True, "TILES": 128}


def product_types(x: str, weight: str, out: str) -> dict[str, str]:
    """Return the types of the tensors of a product."""
    return SCALES | {"x": x, "weight": weight, "table": x, "bias": out, "out": out}


# kernel, types of its tensors (any other argument is a number), compile-time values
KERNELS = [
    (byte_matmul.byte_matmul_kernel, product_types("bf16", "i8", "bf16"), BYTES | FEW),
    (byte_matmul.byte_matmul_kernel, product_types("fp16", "u8", "fp16"), BLOCKS | MANY),
    (byte_matmul.byte_matmul_kernel, product_types("fp32", "i8", "fp32"), BYTES | FEW | {"PRECISION": "ieee"}),
    (byte_matmul.byte_matmul_kernel, product_types("bf16", FP8, "bf16"), BLOCKS | FEW),
    (byte_matmul.byte_matmul_kernel, product_types(FP8, FP8, "bf16"), BYTES | MANY | OF_FP8),
    (byte_matmul.byte_matmul_kernel, product_types(FP8, FP8, "bf16"), BLOCKS | MANY | OF_FP8),
    (int4_matmul.int4_matmul_kernel, product_types("bf16", "u8", "bf16") | {"scales": "fp16"}, INT4 | FEW | {"GROUP": 128}),
    (int4_matmul.int4_matmul_kernel, product_types("fp16", "u8", "fp16") | {"scales": "fp16"}, INT4 | MANY | {"GROUP": 64}),
    (int4_matmul.int4_matmul_kernel, product_types("bf16", "u8", "bf16") | {"scales": "bf16"}, INT4 | FEW | TABLE),
    (
        int4_matmul.int4_matmul_kernel,
        product_types("bf16", "u8", "bf16") | {"scales": "bf16"},
        INT4 | MANY | TABLE | {"GROUP": 16},
    ),
    (normed_products.normed_qkv_kernel, QKV | {"cache": "bf16"}, HEADS | WHOLE),
    (normed_products.normed_qkv_kernel, QKV | {"cache": FP8}, HEADS | WHOLE | {"HAS_BIAS": False}),
    (normed_products.normed_product_kernel, ROWS, WHOLE | {"TILES": 128, "HAS_BIAS": True}),
    (added_product.added_product_kernel, ROWS, WHOLE | {"IS_SPLIT": True, "HAS_BIAS": False}),
    (normed_products.normed_gated_kernel, ROWS, WHOLE | {"TILES": 128}),
    (scaled_stream.scale_stream_kernel, ROWS, {"BLOCK": 2048}),
    (quantize_rows.quantize_rows_kernel, product_types("bf16", "", FP8), {"GROUP": 1536, "BLOCK": 2048}),
]
