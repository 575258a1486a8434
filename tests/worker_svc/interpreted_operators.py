"""Faster operators for Triton's interpreter: the types of a computation are determined once for each pair of operand types.

For every sum of two values, Triton finds the type of the result, converts both to it and repeats the smaller to the shape of
the larger, which takes fifty times as long as NumPy's sum. Here the first sum of two types is Triton's; the plan for the next
ones computes it again, and is kept if both are equal. Where types need more than a conversion by NumPy, as bfloat16 does, there
is no plan, and Triton computes each sum.

The types of values are single objects (fast_interpreter.py), so that plans are found by their identities. The types of all
plans are kept: an identity is never another type's.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter as memory
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from tests.worker_svc.interpreted_programs import NUM_DIMS, expanded

Called = Callable[..., object]
UNSIGNED = np.uint64


def divided(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Return the quotients of integers, rounded toward zero, as Triton computes them."""
    return (lhs - np.fmod(lhs, rhs)) // rhs


ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "floordiv": divided, "mod": np.fmod}
ARITHMETIC |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
COMPARISONS = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal}
WITHOUT_NUMPY = {tl.bfloat16, tl.float8e5, tl.float8e5b16, tl.float8e4nv, tl.float8e4b8, tl.float8e4b15}


KEPT: list[tuple[object, ...]] = []
"""Types of which it is known that there is no plan, or which one: kept, they keep their identities."""


def known_member(owner: object, name: str, called: Called) -> Called:
    """Return a function of the language: with plans if it is an operator, or one of a few that kernels often call."""
    operator = name.strip("_")
    if owner is tl.tensor and operator in COMPARISONS:
        return planned(called, COMPARISONS[operator], is_comparison=True)
    if owner is tl.tensor and operator in ARITHMETIC:
        return planned(called, ARITHMETIC[operator])
    if owner is tl.tensor and operator.removeprefix("r") in ARITHMETIC:
        return planned(called, ARITHMETIC[operator.removeprefix("r")], is_reversed=True)
    if owner is tl.tensor and name == "to":
        return planned_conversion(called)
    if owner is tl.tensor and name == "__getitem__":
        return planned_index(called)
    if owner in (tl, tl.core) and name == "where":
        return planned_choice(called)
    if owner in (tl, tl.core) and name == "load":
        return planned_load(called)
    return called


class Operand(NamedTuple):
    """An operand of a plan.

    Attributes:
        dtype: the type to convert an array to, or None.
        constant: a number as an array, in place of the operand.
    """

    dtype: np.dtype | None = None
    constant: np.ndarray | None = None

    def data(self, value: tl.tensor | float) -> np.ndarray:
        if self.constant is not None:
            return self.constant
        array = value.handle.data
        return array if self.dtype is None else array.astype(self.dtype)


Run = Callable[[object, object], tl.tensor]
"""Computes with two values of known types."""


def maker(result_type: tl.dtype) -> Callable[[np.ndarray], tl.tensor]:
    """Return what makes tensors of arrays, as Triton's two classes do in several calls."""
    like = tl.tensor(TensorHandle(np.empty(1), result_type.scalar), result_type)
    new, scalar, shape, numel = object.__new__, like.dtype, like.shape, like.numel

    def make(data: np.ndarray) -> tl.tensor:
        handle, made = new(TensorHandle), new(tl.tensor)
        handle.data, handle.dtype, handle.attr = data, scalar, {}
        made.handle, made.type, made.dtype, made.shape, made.numel = handle, result_type, scalar, shape, numel
        return made

    return make


def plan_of(lhs: Operand, rhs: Operand, operate: Called, result: tl.tensor) -> Run:
    """Return a plan whose result has the types of `result`."""
    make, left, right = maker(result.type), lhs.data, rhs.data
    if lhs == rhs == Operand():
        return lambda a, b: make(operate(a.handle.data, b.handle.data))
    if lhs == Operand() and rhs.constant is not None:
        number = rhs.constant
        return lambda a, b: make(operate(a.handle.data, number))
    return lambda a, b: make(operate(left(a), right(b)))


def identity(value: object) -> object:
    """Return what stands for a value in the key of a plan: a tensor's type, or a number; None if there is no plan for it."""
    kind = type(value)
    if kind is tl.tensor:
        return id(value.type)
    if kind is int or kind is bool:
        return kind, value
    if kind is float:
        return kind, value if value and value == value else repr(value)  # zeros have signs; what is no number equals nothing
    return None


def is_same(one: tl.tensor, other: tl.tensor) -> bool:
    """Tell whether two results have the same bits."""
    mine, others = one.handle.data, other.handle.data
    return mine.dtype == others.dtype and mine.shape == others.shape and mine.tobytes() == others.tobytes()


def operand(value: object, scalar: tl.dtype) -> Operand | None:
    """Return how to convert a value to a type of elements, or None if NumPy cannot."""
    dtype = interpreter._get_np_dtype(scalar)
    if type(value) is not tl.tensor:
        return None if scalar in WITHOUT_NUMPY else Operand(constant=np.array([value], dtype))
    if value.dtype is scalar:
        return Operand()
    if value.dtype.is_ptr() or scalar.is_ptr() or value.dtype in WITHOUT_NUMPY or scalar in WITHOUT_NUMPY:
        return None
    return Operand(dtype)


def types_of(*values: object) -> tuple[object, ...]:
    return tuple(value.type for value in values if type(value) is tl.tensor)


def planned(called: Called, operate: Called, *, is_comparison: bool = False, is_reversed: bool = False) -> Called:
    """Return an operator with plans."""
    plans: dict[object, Run | None] = {}

    def make(lhs: object, rhs: object, result: tl.tensor) -> Run | None:
        if result.dtype.is_ptr():
            return address_plan(lhs, rhs, result) if operate is np.add else None
        scalar = result.dtype
        if is_comparison:
            semantic = interpreter.interpreter_semantic
            scalar = semantic.binary_op_type_checking_impl(*map(semantic.to_tensor, (lhs, rhs)))[0].dtype
        left, right = operand(lhs, scalar), operand(rhs, scalar)
        if left is None or right is None or scalar.is_ptr():
            return None
        return plan_of(left, right, operate, result)

    def operator(self: tl.tensor, other: object) -> object:
        if type(other) is tl.constexpr:
            other = other.value
        known = identity(other)
        key = (id(self.type), known)
        plan = plans.get(key)
        if plan is not None:
            return plan(other, self) if is_reversed else plan(self, other)
        result = called(self, other)
        if key not in plans and known is not None:
            lhs, rhs = (other, self) if is_reversed else (self, other)
            plan = make(lhs, rhs, result)
            plans[key] = plan if plan is not None and is_same(plan(lhs, rhs), result) else None
            KEPT.append(types_of(self, other))
        return result

    return operator


def address_plan(lhs: object, rhs: object, result: tl.tensor) -> Run | None:
    """Return the plan of a sum of addresses and offsets in elements."""
    size = UNSIGNED(max(1, result.dtype.element_ty.primitive_bitwidth // 8))
    if type(lhs) is not tl.tensor or not lhs.dtype.is_ptr():
        return None
    offsets = Operand(np.dtype(UNSIGNED)) if type(rhs) is tl.tensor else Operand(constant=np.array([rhs]).astype(UNSIGNED))

    def move(addresses: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return addresses + size * numbers

    return plan_of(Operand(), offsets, move, result)


def planned_conversion(called: Called) -> Called:
    """Return `tensor.to` with plans for conversions of NumPy's."""
    plans: dict[object, Callable[[tl.tensor], tl.tensor] | None] = {}

    def to(self: tl.tensor, dtype: object, *arguments: object, **options: object) -> object:
        if arguments or options or not isinstance(dtype, tl.dtype):
            return called(self, dtype, *arguments, **options)
        if self.dtype is dtype:
            return self
        key = (id(self.type), id(dtype))
        plan = plans.get(key)
        if plan is not None:
            return plan(self)
        result = called(self, dtype)
        if key not in plans:
            conversion = None if dtype.is_block() else operand(self, dtype)
            plan = None if conversion is None else make(conversion.dtype, result)
            plans[key] = plan if plan is not None and is_same(plan(self), result) else None
            KEPT.append((self.type, dtype))
        return result

    def make(dtype: np.dtype, result: tl.tensor) -> Callable[[tl.tensor], tl.tensor]:
        make = maker(result.type)
        return lambda value: make(value.handle.data.astype(dtype))

    return to


def planned_index(called: Called) -> Called:
    """Return `tensor.__getitem__`, which inserts dimensions of 1, with a plan for each list of colons and None."""
    plans: dict[object, tl.dtype] = {}
    everything = slice(None)

    def getitem(self: tl.tensor, slices: object) -> object:
        if type(slices) is not tuple or not all(
            each is None or (type(each) is slice and each == everything) for each in slices
        ):
            return called(self, slices)
        key = (id(self.type), tuple([each is None for each in slices]))
        kind = plans.get(key)
        if kind is not None:
            data = self.handle.data
            is_of_several = data.ndim == NUM_DIMS and len(slices) == NUM_DIMS - 1
            data = expanded(data, slices.index(None)) if is_of_several else data[slices]
            return tl.tensor(TensorHandle(data, self.handle.dtype.scalar), kind)
        result = called(self, slices)
        if result.shape is not self.shape:
            plans[key] = result.type
            KEPT.append((self.type,))
        return result

    return getitem


def planned_choice(called: Called) -> Called:
    """Return `where` with plans."""
    plans: dict[object, Callable[[tl.tensor, object, object], tl.tensor] | None] = {}

    def where(condition: object, x: object, y: object) -> object:
        values = [value.value if type(value) is tl.constexpr else value for value in (condition, x, y)]
        condition, x, y = values
        key = tuple(map(identity, values))
        plan = plans.get(key)
        if plan is not None:
            return plan(condition, x, y)
        result = called(condition, x, y)
        if key not in plans and None not in key and type(condition) is tl.tensor:
            plan = make(x, y, result) if condition.dtype is tl.int1 else None
            plans[key] = plan if plan is not None and is_same(plan(condition, x, y), result) else None
            KEPT.append(types_of(*values))
        return result

    def make(x: object, y: object, result: tl.tensor) -> Callable[[tl.tensor, object, object], tl.tensor] | None:
        left, right = operand(x, result.dtype), operand(y, result.dtype)
        if left is None or right is None:
            return None
        made, x_of, y_of = maker(result.type), left.data, right.data
        return lambda condition, x, y: made(np.where(condition.handle.data, x_of(x), y_of(y)))

    return where


Load = Callable[[tl.tensor, tl.tensor | None, object], tl.tensor]
"""Reads values at addresses, where a mask is set, or another value."""


def planned_load(called: Called) -> Called:
    """Return `load` with plans for tensors of addresses, of which each has a mask and another value, or none."""
    plans: dict[object, Load | None] = {}

    def load(pointer: tl.tensor, mask: object = None, other: object = None, **options: object) -> object:
        mask, other = (value.value if type(value) is tl.constexpr else value for value in (mask, other))
        key = (id(pointer.type), id(mask.type) if type(mask) is tl.tensor else mask is None, other is None or identity(other))
        plan = plans.get(key) if "boundary_check" not in options and "padding_option" not in options else None
        if plan is not None:
            return plan(pointer, mask, other)
        result = called(pointer, mask, other, **options)
        if key not in plans and key[1] is not False and key[2] is not None:
            plan = make(pointer, other, result)
            plans[key] = plan if plan is not None and is_same(plan(pointer, mask, other), result) else None
            KEPT.append(types_of(pointer, mask, other))
        return result

    def make(pointer: tl.tensor, other: object, result: tl.tensor) -> Load | None:
        otherwise = Operand() if other is None else operand(other, result.dtype)
        if otherwise is None or result.dtype is tl.int1 or result.handle.data.shape != pointer.handle.data.shape:
            return None
        # Of one program: those that run together have arrays with a dimension more (interpreted_programs.py).
        dtype, shape = interpreter._get_np_dtype(result.dtype), tuple(result.type.shape) if result.type.is_block() else (1,)
        everywhere, zeros, made = np.ones(shape, bool), np.zeros(shape, dtype), maker(result.type)

        def read(pointer: tl.tensor, mask: tl.tensor | None, other: object) -> tl.tensor:
            chosen = everywhere if mask is None else mask.handle.data
            default = zeros if other is None else otherwise.data(other)
            addresses = pointer.handle.data
            if not addresses.shape == chosen.shape == default.shape:
                addresses, chosen, default = np.broadcast_arrays(addresses, chosen, default)
            return made(memory.load(addresses, chosen, default, dtype))

        return read

    return load
