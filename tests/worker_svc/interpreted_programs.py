"""Faster launches of Triton's interpreter: the programs of simple kernels run together, as rows of NumPy's arrays.

Triton interprets one program after the other. Here a kernel runs once for up to 256 programs: the arrays of values that differ
between programs have one more dimension, the first: [P, N] in place of a block's [N], [P, 1] in place of a number's [1]. The
types and shapes that the language sees stay those of one program. Programs that diverge at a branch start again as two groups,
so a kernel must not diverge after its first store. A group's arrays must fit blocks of at most one dimension.

Dims: P programs that run together, N elements of a block.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from itertools import product

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterError, TensorHandle

TOGETHER = {
    *("rotate_and_cache_kernel", "rms_norm_kernel", "gated_kernel", "scale_stream_kernel"),
    *("argmax_kernel", "draw_kernel", "gather_logprobs_kernel"),
}
"""Kernels whose programs run together: their blocks have one dimension, and no program reads what another one writes."""
MOST = 256
"""Programs that run together, so that their blocks stay in the processor's cache."""


class ProgramsDiverge(Exception):
    """A condition holds for some programs alone.

    Args:
        condition: [P] whether it holds.
    """

    def __init__(self, condition: np.ndarray) -> None:
        super().__init__("programs diverge after a store: take the kernel out of TOGETHER")
        self.condition = condition


class Builder(interpreter.InterpreterBuilder):
    """The interpreter's operations, of which those that know a block's shape accept the programs' dimension before it."""

    def __init__(self) -> None:
        super().__init__()
        self.has_stored = False

    def create_get_program_id(self, axis: int) -> TensorHandle:
        index = self.grid_idx[axis]
        return TensorHandle(index if isinstance(index, np.ndarray) else np.array([index], np.int32), tl.int32)

    def create_splat(self, ret_ty: tl.block_type, arg: TensorHandle) -> TensorHandle:
        if arg.data.ndim == 1:
            return super().create_splat(ret_ty, arg)
        return TensorHandle(np.broadcast_to(arg.data, (len(arg.data), *ret_ty.shape)), arg.dtype.scalar)

    def create_broadcast(self, arg: TensorHandle, shape: tuple[int, ...]) -> TensorHandle:
        if arg.data.ndim == len(shape):
            return super().create_broadcast(arg, shape)
        return TensorHandle(np.broadcast_to(arg.data, (len(arg.data), *shape)), arg.dtype.scalar)

    def create_masked_load(
        self, ptrs: TensorHandle, mask: TensorHandle, other: TensorHandle | None, *how: object
    ) -> TensorHandle:
        if ptrs.data.shape != mask.data.shape or (other is not None and other.data.shape != ptrs.data.shape):
            ptrs, mask, other = of_one_shape(ptrs, mask, other)
        return super().create_masked_load(ptrs, mask, other, *how)

    def create_masked_store(self, ptrs: TensorHandle, value: TensorHandle, mask: TensorHandle, *how: object) -> None:
        self.has_stored = True
        if not ptrs.data.shape == value.data.shape == mask.data.shape:
            ptrs, value, mask = of_one_shape(ptrs, value, mask)
        super().create_masked_store(ptrs, value, mask, *how)


def of_one_shape(*handles: TensorHandle | None) -> list[TensorHandle | None]:
    """Return copies of values with the dimensions that any of them has."""
    shape = np.broadcast_shapes(*(each.data.shape for each in handles if each is not None))
    return [None if each is None else TensorHandle(np.broadcast_to(each.data, shape).copy(), each.dtype) for each in handles]


def truth(value: tl.tensor) -> bool:
    """Return whether a condition holds.

    Raises:
        ProgramsDiverge: it holds for some programs alone.
    """
    data = value.handle.data
    if data.size == 1:
        return bool(data)
    if data.ndim == 1:
        return True  # Triton's answer for blocks
    if data.all() or not data.any():
        return bool(data.flat[0])
    raise ProgramsDiverge(data[:, 0].astype(bool))


def with_truth(replace: Callable[..., None]) -> Callable[..., None]:
    """Return Triton's replacement of a tensor's functions, which replaces that of a condition by `truth`."""

    def replace_functions(tensor: type, scope: interpreter._LangPatchScope) -> None:
        replace(tensor, scope)
        scope.set_attr(tensor, "__bool__", truth)

    return replace_functions


def reduced_together(apply: Callable[..., object]) -> Callable[..., object]:
    """Return Triton's reduction, which reduces each program's block if several run together."""
    reductions = {
        tl.standard._sum_combine: np.sum,
        tl.standard._elementwise_max: np.nanmax,
        tl.standard._elementwise_min: np.nanmin,
    }

    def apply_impl(self: interpreter.ReduceOps, values: tuple[tl.tensor, ...]) -> object:
        value = values[0]
        if value.handle.data.ndim == len(value.shape):
            return apply(self, values)
        assert len(values) == len(value.shape) == 1, "blocks of programs that run together have one dimension"
        assert not self.keep_dims, "a reduction of programs that run together brings numbers"
        data = reductions[self.combine_fn](np.ascontiguousarray(value.handle.data), axis=1, keepdims=True)
        return tl.tensor(TensorHandle(data.astype(interpreter._get_np_dtype(value.dtype)), value.dtype), value.dtype)

    return apply_impl


class Launch:
    """A kernel with its grid, in the place of Triton's: tensors are those of the host, and are not copied to it and back."""

    def __init__(self, function: Callable[..., object], names: list[str], grid: object, hooks: object = ()) -> None:
        assert not hooks, "Triton's tuner calls hooks; its kernels are not run here"
        self.fn, self.arg_names, self.grid = function, names, grid

    def __call__(self, *arguments: object, **options: object) -> None:
        constants, defaults = parameters_of(self.fn)
        values = defaults | dict(zip(self.arg_names, arguments, strict=False))
        values |= {name: value for name, value in options.items() if name in self.arg_names}
        grid = self.grid(values) if callable(self.grid) else self.grid
        interpreter._patch_lang(self.fn)
        known = {name: each if name in constants else interpreter._implicit_cvt(each) for name, each in values.items()}
        sizes = (*grid, 1, 1)[:3]
        interpreter.interpreter_builder.set_grid_dim(*sizes)
        try:
            if self.fn.__name__ in TOGETHER and sizes[0] > 1:
                self._run_together(known, sizes)
            else:
                for place in product(*map(range, sizes)):
                    interpreter.interpreter_builder.grid_idx = place
                    self.fn(**known)
        except Exception as error:
            if triton.knobs.compilation.front_end_debugging:
                raise
            raise InterpreterError(repr(error)) from error

    def _run_together(self, values: Mapping[str, object], sizes: tuple[int, int, int]) -> None:
        """Run the programs of the first dimension together, and the places in the others one after the other."""
        waiting = [
            (np.arange(first, min(first + MOST, sizes[0]), dtype=np.int32)[:, None], *place)
            for first in range(0, sizes[0], MOST)
            for place in product(range(sizes[1]), range(sizes[2]))
        ]
        builder = interpreter.interpreter_builder
        while waiting:
            programs, *place = builder.grid_idx = waiting.pop()
            builder.has_stored = False
            try:
                self.fn(**values)
            except ProgramsDiverge as groups:
                if builder.has_stored:
                    raise
                waiting += [(programs[groups.condition], *place), (programs[~groups.condition], *place)]


@cache
def parameters_of(function: Callable[..., object]) -> tuple[frozenset[str], dict[str, object]]:
    """Return which parameters of a kernel are known when it is compiled, and the values of those that have one."""
    parameters = inspect.signature(function).parameters
    normalized = triton.runtime.jit._normalize_ty
    constants = frozenset(name for name, each in parameters.items() if normalized(each.annotation) == "constexpr")
    return constants, {name: each.default for name, each in parameters.items() if each.default is not each.empty}


def install() -> None:
    """Replace the launches of this process's interpreter; fast_interpreter.py does so once."""
    interpreter.interpreter_builder.__class__ = Builder
    interpreter.interpreter_builder.has_stored = False
    interpreter._patch_lang_tensor = with_truth(interpreter._patch_lang_tensor)
    interpreter.ReduceOps.apply_impl = reduced_together(interpreter.ReduceOps.apply_impl)
    interpreter.GridExecutor = Launch
