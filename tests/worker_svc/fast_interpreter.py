"""Triton's interpreter, faster: it takes the language's functions over once, and makes each type of a value once.

Triton searches all members of the language for functions to replace at every launch and every call of a function. In these
tests nothing but the interpreter uses the language, so what is replaced stays so. For every value, Triton builds its table of
NumPy's types, the type of its block and the tuple of its shape; here they are kept. Triton computes each sum and product of
integers again in 64 bits, to assert that it has not overflowed, and drops the result, as assertions are off; here it does not.
"""

import dataclasses
import inspect
import threading
from collections.abc import Callable
from functools import cache, wraps

import numpy as np
import triton
import triton.language as tl
from triton._utils import validate_block_shape
from triton.runtime import interpreter

from tests.worker_svc import interpreted_programs
from tests.worker_svc.interpreted_operators import known_member


def install() -> None:
    """Make the interpreter of this process faster; again, or where a card runs the kernels: a no-op."""
    if triton.knobs.runtime.interpret and not isinstance(interpreter._patch_lang, Replaced):
        interpreted_programs.install()
        interpreter._patch_lang = Replaced(interpreter._patch_lang)
        interpreter._patch_attr = replace_builtin
        interpreter._get_np_dtype = by_scalar(interpreter._get_np_dtype)
        interpreter.InterpretedFunction.run = one_at_a_time(interpreter.InterpretedFunction.run)
        builder, semantic = interpreter.interpreter_builder, interpreter.TritonSemantic
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=builder.options.debug)
        tl.block_type.__new__ = new_block_type
        tl.block_type.__init__ = lambda self, element_ty, shape: None
        tl.block_type.with_element_ty = lambda self, element_ty: self.known.type_of(element_ty)
        tl.block_type.to_ir = lambda self, builder: self  # to the interpreter, types are those of the language
        tl.tensor.__init__ = init_tensor
        tl.str_to_ty = cache(tl.str_to_ty)
        interpreter.TensorHandle.__init__ = init_handle
        tl.dtype.__eq__ = identical_or(tl.dtype.__eq__)
        tl.block_type.__eq__ = identical_or(tl.block_type.__eq__)
        semantic.broadcast_impl_value = same_shape_or(semantic.broadcast_impl_value)


class Replaced:
    """Replaces the language's functions for the interpreter, once for each set of modules that a kernel sees.

    Args:
        replace: Triton's own.
    """

    def __init__(self, replace: Callable[[object], object]) -> None:
        self._replace = replace
        self._known: set[object] = set()
        self._seen: set[frozenset[str]] = set()

    def __call__(self, function: Callable[..., object]) -> "Replaced":
        if function not in self._known:
            self._known.add(function)
            values = function.__globals__.values()
            modules = frozenset(each.__name__ for each in values if inspect.ismodule(each) and each in (tl, tl.core))
            if modules not in self._seen:
                self._seen.add(modules)
                self._replace(function)
        return self

    def restore(self) -> None:
        """Leave all as it is: the next launch needs it again."""


def replace_builtin(
    owner: object,
    name: str,
    member: Callable[..., object],
    builder: interpreter.InterpreterBuilder,
    scope: interpreter._LangPatchScope,
) -> None:
    """Replace a function of the language as Triton does: with one that is told the interpreter's semantics."""

    undecorated = getattr(member, "__wrapped__", member)  # without the check that there is a semantics

    def called(*arguments: object, **options: object) -> object:
        options["_semantic"] = interpreter.interpreter_semantic
        return undecorated(*arguments, **options)

    scope.set_attr(owner, name, known_member(owner, name, called))


def by_scalar(dtype_of: Callable[[tl.dtype], np.dtype]) -> Callable[[tl.dtype], np.dtype]:
    """Return Triton's look-up of a NumPy type, with the answer for each scalar kept."""
    of_scalar = cache(dtype_of)

    def found(kind: tl.dtype) -> np.dtype:
        scalar = kind.element_ty if isinstance(kind, tl.block_type) else kind
        return np.dtype(np.uint64) if isinstance(scalar, tl.pointer_type) else of_scalar(scalar)

    return found


@dataclasses.dataclass(frozen=True, eq=False)
class Shape:
    """A shape in the forms that Triton wants, of a block's type and of a tensor, and the types of blocks that have it."""

    of_type: tl.tuple
    of_tensor: tl.tuple
    numel: tl.constexpr
    types: dict[object, tl.block_type] = dataclasses.field(default_factory=dict)

    def type_of(self, element_ty: tl.dtype) -> tl.block_type:
        """Return the type of blocks of this shape with such elements: always the same object."""
        key = (element_ty.name, element_ty.address_space) if element_ty.is_ptr() else element_ty.name
        if key not in self.types:
            kind = self.types[key] = object.__new__(tl.block_type)
            kind.known, kind.element_ty, kind.shape, kind.numel = self, element_ty, self.of_type, self.numel.value
            kind.name = f"<{list(self.of_type)}, {element_ty}>"
        return self.types[key]


@cache
def shape_of(*sizes: int) -> Shape:
    """Return a shape: always the same object, so that equal shapes are found by their identity."""
    numel = validate_block_shape(sizes)
    return Shape(tl.tuple(sizes), tl.tuple([tl.constexpr(size) for size in sizes]), tl.constexpr(numel))


SCALAR = tl.tuple([]), tl.constexpr(1)


def new_block_type(_: type, element_ty: tl.dtype, shape: list[int | tl.constexpr] | tl.tuple) -> tl.block_type:
    """Return a block's type with a shape that is made once, as the type is."""
    sizes = [size.value if isinstance(size, tl.constexpr) else size for size in shape]
    if not sizes:
        raise TypeError("0d block_type is forbidden")
    return shape_of(*sizes).type_of(element_ty)


def init_handle(
    self: interpreter.TensorHandle, data: np.ndarray, dtype: tl.dtype, attr: dict[str, object] | None = None
) -> None:
    """Initialize what holds an array as Triton does."""
    self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr


def init_tensor(self: tl.tensor, handle: interpreter.TensorHandle, type: tl.dtype) -> None:  # noqa: A002 - Triton's name
    """Initialize a tensor as Triton does, with its type's shape."""
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = (type.known.of_tensor, type.known.numel) if type.is_block() else SCALAR


def identical_or(equals: Callable[[tl.dtype, object], bool]) -> Callable[[tl.dtype, object], bool]:
    """Return the comparison of two types, which compares those that are one object first."""
    return lambda self, other: self is other or equals(self, other)


def same_shape_or(broadcast: Callable[..., tuple[tl.tensor, tl.tensor]]) -> Callable[..., tuple[tl.tensor, tl.tensor]]:
    """Return Triton's broadcast of two values, which has nothing to do for two blocks of one shape."""

    def broadcast_two(self: interpreter.TritonSemantic, lhs: tl.tensor, rhs: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
        if lhs.shape is rhs.shape:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    return broadcast_two


def one_at_a_time(launch: Callable[..., object]) -> Callable[..., object]:
    """Return `launch` for callers on several threads.

    The interpreter keeps the place in the grid in one global object; Python 3.11 cannot parse two kernels at a time.
    """
    lock = threading.Lock()

    @wraps(launch)
    def locked(*arguments: object, **options: object) -> object:
        with lock:
            return launch(*arguments, **options)

    return locked
