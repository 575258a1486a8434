"""The kernels of mixtures of experts for compile_all.py: kernels, types of their tensors, compile-time values."""

from tetrad.worker_svc.kernels import expert_groups, expert_matmul

GROUPS = {"chosen": "i64", "order": "i32", "tiles": "i32"}
FEW = {"ROWS": 16, "OUTPUTS": 64, "COLUMNS": 128, "IS_EVEN": True, "PRECISION": "tf32"}
MANY = {"ROWS": 64, "OUTPUTS": 128, "COLUMNS": 64, "IS_EVEN": False, "PRECISION": "tf32"}
FIRST = {"CHOSEN": 8, "IS_FIRST": True, "HAS_BIAS": True}
SECOND = {"CHOSEN": 1, "IS_FIRST": False, "HAS_BIAS": False}


def types_of(x: str, out: str) -> dict[str, str]:
    """Return the types of the tensors: activations and weights, and what the product leaves."""
    return GROUPS | {"x": x, "weight": x, "bias": x, "factors": "fp32", "out": out}


KERNELS = [
    (expert_groups.group_pairs_kernel, GROUPS, {"EXPERTS": 512, "ROWS": 16, "PAIRS": 32, "OTHERS": 32}),
    (expert_matmul.expert_matmul_kernel, types_of("bf16", "bf16"), FEW | FIRST),
    (expert_matmul.expert_matmul_kernel, types_of("bf16", "fp32"), MANY | SECOND),
    (expert_matmul.expert_matmul_kernel, types_of("fp32", "fp32"), FEW | SECOND | {"COLUMNS": 64, "PRECISION": "ieee"}),
]
