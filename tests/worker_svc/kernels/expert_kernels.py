"""The kernels of mixtures of experts for compile_all.py: kernels, types of their tensors, compile-time values."""

from tetrad.worker_svc.kernels import expert_groups, expert_matmul

GROUPS = {"chosen": "i64", "order": "i32", "tiles": "i32"}
FEW = {"ROWS": 16, "OUTPUTS": 64, "COLUMNS": 128, "IS_EVEN": True, "PRECISION": "tf32"}
MANY = {"ROWS": 64, "OUTPUTS": 128, "COLUMNS": 64, "IS_EVEN": False, "PRECISION": "tf32"}
PLAIN = {"GROUP": 0, "HAS_SCALES": False}
BLOCKS = {"GROUP": 128, "HAS_SCALES": True}
ROWS = {"GROUP": 0, "HAS_SCALES": True}
FIRST = {"CHOSEN": 8, "IS_FIRST": True, "HAS_BIAS": True}
SECOND = {"CHOSEN": 1, "IS_FIRST": False, "HAS_BIAS": False}


def types_of(x: str, out: str, weight: str = "") -> dict[str, str]:
    """Return the types of the tensors of a product; weights are in x's type unless another one is given."""
    return GROUPS | {"x": x, "weight": weight or x, "scales": "fp32", "bias": x, "factors": "fp32", "out": out}


def int4_types(x: str, out: str) -> dict[str, str]:
    """Return the types of the tensors of a product with weights of 4 bits."""
    return types_of(x, out) | {"packed": "u8", "scales": "bf16", "zeros": "u8", "table": x}


def without_even(tile: dict[str, object]) -> dict[str, object]:
    """Return the values of a tile without those that the kernel of 4 bits lacks."""
    return {name: value for name, value in tile.items() if name != "IS_EVEN"}


KERNELS = [
    (expert_groups.group_pairs_kernel, GROUPS, {"EXPERTS": 512, "ROWS": 16, "PAIRS": 32, "OTHERS": 32}),
    (expert_matmul.expert_matmul_kernel, types_of("bf16", "bf16"), FEW | FIRST | PLAIN),
    (expert_matmul.expert_matmul_kernel, types_of("bf16", "fp32"), MANY | SECOND | PLAIN),
    (expert_matmul.expert_matmul_kernel, types_of("fp32", "fp32"), FEW | SECOND | PLAIN | {"COLUMNS": 64, "PRECISION": "ieee"}),
    (expert_matmul.expert_matmul_kernel, types_of("bf16", "bf16", "fp8e4nv"), FEW | FIRST | BLOCKS),
    (expert_matmul.expert_matmul_kernel, types_of("bf16", "fp32", "u8"), MANY | SECOND | BLOCKS),
    (expert_matmul.expert_matmul_kernel, types_of("bf16", "bf16", "i8"), FEW | FIRST | ROWS),
    (
        expert_matmul.expert_int4_matmul_kernel,
        int4_types("bf16", "bf16"),
        without_even(FEW) | FIRST | {"GROUP": 32, "COLUMNS": 32, "HAS_TABLE": True},
    ),
    (
        expert_matmul.expert_int4_matmul_kernel,
        int4_types("bf16", "fp32"),
        without_even(MANY) | SECOND | {"GROUP": 128, "HAS_TABLE": False},
    ),
]
