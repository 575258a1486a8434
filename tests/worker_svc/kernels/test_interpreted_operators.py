"""The faster operators of the interpreter give the same bits as Triton's own, for all pairs of types that kernels use."""

import operator
from itertools import product

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.semantic import IncompatibleTypeErrorImpl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from tests.worker_svc.interpreted_operators import ARITHMETIC, COMPARISONS, is_same

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="a card compiles kernels"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # divisions by zero bring the same, too
]

TYPES = (tl.int1, tl.uint8, tl.int32, tl.uint32, tl.int64, tl.float16, tl.float32)
REFUSALS = (TypeError, ValueError, AttributeError, KeyError, OverflowError, IncompatibleTypeErrorImpl)
NUMBERS = (3, 2.5, -0.0, True)
SHAPES = ((), (4,), (4, 1), (1, 4))
NAMES = {"and": "and_", "or": "or_", "xor": "xor_", "lt": "less_than", "le": "less_equal"}
NAMES |= {"gt": "greater_than", "ge": "greater_equal", "eq": "equal", "ne": "not_equal"}


@triton.jit
def nothing_kernel(out):
    tl.store(out, 0)


@pytest.fixture(autouse=True, scope="module")
def interpreted() -> None:
    """The first launch of a kernel replaces the operators."""
    nothing_kernel[(1,)](torch.zeros(1))


def value(kind: tl.dtype, shape: tuple[int, ...], first: int) -> tl.tensor:
    numbers = np.arange(first, first + max(1, int(np.prod(shape)))).reshape(shape or (1,))
    data = (numbers % 2 if kind is tl.int1 else numbers).astype(interpreter._get_np_dtype(kind))
    return tl.tensor(TensorHandle(data, kind), tl.block_type(kind, list(shape)) if shape else kind)


def triton_own(name: str, lhs: object, rhs: object) -> tl.tensor | None:
    """Return what Triton computes, or None if it refuses the types."""
    semantic = interpreter.interpreter_semantic
    if name in COMPARISONS:
        rhs = semantic.to_tensor(rhs)
    extra = (False,) if name in ("add", "sub", "mul") else ()  # whether to look for overflows
    try:
        return getattr(semantic, NAMES.get(name, name))(lhs, rhs, *extra)
    except REFUSALS:
        return None


def same(found: object, expected: tl.tensor) -> bool:
    # Triton gives the array of a comparison the type of its operands.
    has_type = found.dtype is tl.int1 or found.handle.dtype is expected.handle.dtype
    return has_type and found.type is expected.type and found.shape == expected.shape and is_same(found, expected)


@pytest.mark.parametrize("name", [*ARITHMETIC, *COMPARISONS])
def test_an_operator_computes_what_tritons_own_does(name):
    """Three times: the plan that the first leaves computes the second, and one of other values."""
    operate, num_compared = getattr(operator, f"{name}_" if name in ("and", "or") else name), 0
    shapes = [pair for pair in product(SHAPES, SHAPES) if not pair[0] or not pair[1] or len(pair[0]) == len(pair[1])]
    others = [(right, shape) for right in TYPES for shape in shapes]
    for left, (right, (shape, other_shape)), first in product(TYPES, others, (1, 1, 5)):
        lhs, rhs = value(left, shape, first), value(right, other_shape, first + 2)
        expected = triton_own(name, lhs, rhs)
        if expected is not None:
            assert same(operate(lhs, rhs), expected), (left, shape, right, other_shape)
            num_compared += 1

    assert num_compared > 200


@pytest.mark.parametrize("name", [*ARITHMETIC, *COMPARISONS])
def test_an_operator_with_a_number_computes_what_tritons_own_does(name):
    operate, num_compared = getattr(operator, f"{name}_" if name in ("and", "or") else name), 0
    for kind, shape, number, first in product(TYPES, ((), (4,)), NUMBERS, (1, 1, 5)):
        lhs = value(kind, shape, first)
        expected = triton_own(name, lhs, number)
        if expected is not None:
            assert same(operate(lhs, number), expected), (kind, shape, number)
            num_compared += 1
        expected = triton_own(name, number, lhs) if name in ARITHMETIC else None
        if expected is not None:
            assert same(operate(number, lhs), expected), (number, kind, shape)

    assert num_compared > 50


@pytest.mark.parametrize("kind", [tl.int1, tl.int32, tl.float16, tl.bfloat16])
def test_addresses_are_those_of_elements(kind):
    pointers = tl.tensor(TensorHandle(np.array([1 << 40], np.uint64), tl.pointer_type(kind)), tl.pointer_type(kind))
    for offset in (value(tl.int32, (4,), -2), value(tl.uint32, (4,), 3), value(tl.int64, (), 1 << 33), -3, 7):
        for _ in range(2):
            assert is_same(pointers + offset, triton_own("add", pointers, offset))
            assert is_same(offset + pointers, triton_own("add", offset, pointers))


def test_values_are_converted_as_by_triton():
    types, num_compared = (*TYPES, tl.bfloat16), 0
    for source, target, first in product(types, types, (1, 1, 5)):
        x = value(source, (4,), first)
        expected = triton_own("cast", x, target)
        if expected is not None:
            assert same(x.to(target), expected), (source, target)
            num_compared += 1

    assert num_compared > 100


def test_choices_are_those_of_triton():
    semantic = interpreter.interpreter_semantic
    for left, right, first in product((*TYPES, 2.5), (*TYPES, float("-inf")), (1, 1, 5)):
        condition = value(tl.int1, (4,), first)
        x, y = (value(kind, (4,), first) if isinstance(kind, tl.dtype) else kind for kind in (left, right))
        assert same(tl.where(condition, x, y), semantic.where(condition, x, y)), (left, right)


@triton.jit
def copy_kernel(source, out, mask, default, size: tl.constexpr):
    offsets = tl.arange(0, size)
    tl.store(out + offsets, tl.load(source + offsets))
    tl.store(out + size + offsets, tl.load(source + offsets, mask=tl.load(mask + offsets) > 0))
    tl.store(out + 2 * size + offsets, tl.load(source + offsets, mask=offsets < 3, other=7))
    tl.store(out + 3 * size + offsets, tl.load(source + offsets, mask=offsets < 3, other=tl.load(default)))
    table = tl.load(source + offsets[:, None] % 2 + offsets[None, :], mask=offsets[None, :] < 2, other=0)
    tl.store(out + (4 + offsets[:, None]) * size + offsets[None, :], table)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_values_are_read_where_a_mask_is_set(dtype):
    mask, default = torch.tensor([1, 0, 1, 0]), torch.tensor(9)
    for first in (1, 1, 5):
        source, out = torch.arange(first, first + 8).to(dtype), torch.zeros(8, 4, dtype=dtype)

        copy_kernel[(1,)](source, out, mask, default, 4)

        x = source.tolist()
        copies = [x[:4], [x[0], 0, x[2], 0], [*x[:3], 7], [*x[:3], 9]]
        assert out.tolist() == copies + [[x[row % 2], x[row % 2 + 1], 0, 0] for row in range(4)]
