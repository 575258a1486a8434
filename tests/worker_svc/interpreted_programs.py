"""Faster launches of Triton's interpreter: the programs of most kernels run together, as slices of NumPy's arrays.

Triton interprets one program after the other. Here a kernel runs once for many programs: the arrays of values that differ
between programs have a first dimension more, and the dimensions of a matrix after it: [P, 1, 1] in place of a number's [1],
[P, 1, N] in place of a row's [N], [P, M, N] in place of [M, N]. The types and shapes that the language sees stay those of one
program. Programs that diverge at a branch or a loop start again as two groups, so a kernel must not diverge after its first
store.

Dims: P programs that run together; M, N of a block.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from math import prod

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterError, TensorHandle

ROWS = ("rotate_and_cache_kernel", "rms_norm_kernel", "gated_kernel", "scale_stream_kernel")
ROWS += ("argmax_kernel", "draw_kernel", "gather_logprobs_kernel")
MATRICES = ("normed_qkv_kernel", "normed_product_kernel", "normed_gated_kernel", "block_masses_kernel")
MATRICES += ("prefill_attention_kernel", "expert_matmul_kernel", "expand_kernel", "shrink_kernel")
TOGETHER = dict.fromkeys(ROWS, 256) | dict.fromkeys(MATRICES, 16)
"""Kernels of which no program reads what another one writes -> programs that run together, small enough for caches."""
NUM_DIMS = 3
"""Of the arrays of values that differ between programs."""


class ProgramsDiverge(Exception):
    """A condition holds for some programs alone.

    Args:
        condition: [P] whether it holds.
    """

    def __init__(self, condition: np.ndarray) -> None:
        super().__init__("programs diverge after a store: take the kernel out of TOGETHER")
        self.condition = condition


class Builder(interpreter.InterpreterBuilder):
    """The interpreter's operations, of which those that know a block's shape accept arrays of several programs."""

    def __init__(self) -> None:
        super().__init__()
        self.has_stored = False

    def create_get_program_id(self, axis: int) -> TensorHandle:
        index = self.grid_idx[axis]
        return TensorHandle(index if isinstance(index, np.ndarray) else np.array([index], np.int32), tl.int32)

    def create_splat(self, ret_ty: tl.block_type, arg: TensorHandle) -> TensorHandle:
        if arg.data.ndim < NUM_DIMS:
            return super().create_splat(ret_ty, arg)
        return self.create_broadcast(arg, ret_ty.shape)

    def create_broadcast(self, arg: TensorHandle, shape: Sequence[int]) -> TensorHandle:
        if arg.data.ndim == len(shape):
            return super().create_broadcast(arg, shape)
        return TensorHandle(np.broadcast_to(arg.data, of_several(len(arg.data), shape)), arg.dtype.scalar)

    def create_expand_dims(self, arg: TensorHandle, axis: int) -> TensorHandle:
        return TensorHandle(expanded(arg.data, axis), arg.dtype.scalar)

    def create_trans(self, arg: TensorHandle, perm: Sequence[int]) -> TensorHandle:
        if arg.data.ndim == len(perm):
            return super().create_trans(arg, perm)
        return TensorHandle(np.swapaxes(arg.data, 1, 2), arg.dtype.scalar)

    def create_reshape(self, arg: TensorHandle, shape: Sequence[int], allow_reorder: bool) -> TensorHandle:
        if arg.data.size == prod(shape):
            return super().create_reshape(arg, shape, allow_reorder)
        return TensorHandle(arg.data.reshape(of_several(len(arg.data), shape)), arg.dtype.scalar)

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


def of_several(num_programs: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of an array for several programs."""
    return (num_programs, *(1,) * (NUM_DIMS - 1 - len(shape)), *shape)


def expanded(data: np.ndarray, axis: int) -> np.ndarray:
    """Return a row as a matrix with one row (axis 0) or one column, or another array with a dimension more."""
    if data.ndim < NUM_DIMS:
        return np.expand_dims(data, axis)
    return data if axis == 0 else np.swapaxes(data, 1, 2)


def of_one_shape(*handles: TensorHandle | None) -> list[TensorHandle | None]:
    """Return copies of values with the dimensions that any of them has."""
    shape = np.broadcast_shapes(*(each.data.shape for each in handles if each is not None))
    return [None if each is None else TensorHandle(np.broadcast_to(each.data, shape).copy(), each.dtype) for each in handles]


def truth(value: tl.tensor) -> bool:
    """Return whether a condition holds.

    Raises:
        ProgramsDiverge: it holds for some programs alone.
    """
    return bool(number(value.handle.data.astype(bool))) if value.numel.value == 1 else True  # Triton's answer for blocks


def number(data: np.ndarray) -> object:
    """Return a number that is the same for all programs.

    Raises:
        ProgramsDiverge: they have several.
    """
    first = data.flat[0]
    if data.size > 1 and (data != first).any():
        raise ProgramsDiverge((data == first).ravel())
    return first


def with_truth(replace: Callable[..., None]) -> Callable[..., None]:
    """Return Triton's replacement of a tensor's functions, which replaces those of conditions and of bounds of loops."""

    def replace_functions(tensor: type, scope: interpreter._LangPatchScope) -> None:
        replace(tensor, scope)
        scope.set_attr(tensor, "__bool__", truth)
        scope.set_attr(tensor, "__index__", lambda value: int(number(value.handle.data)))

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
        data, rank = value.handle.data, len(value.shape)
        if data.ndim == rank:
            return apply(self, values)
        assert len(values) == 1 and rank < NUM_DIMS and not self.keep_dims, "not a reduction of programs that run together"
        axis = NUM_DIMS - rank + self.axis
        found = reductions[self.combine_fn](np.ascontiguousarray(data), axis=axis, keepdims=True)
        # What is left of a matrix is a row.
        found = (found if axis == 1 else np.swapaxes(found, 1, 2)).astype(interpreter._get_np_dtype(value.dtype))
        kind = value.dtype if rank == 1 else tl.block_type(value.dtype, [found.shape[-1]])
        return tl.tensor(TensorHandle(found, value.dtype), kind)

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
            most = TOGETHER.get(self.fn.__name__, 1)
            if most > 1 < prod(sizes):
                self._run_together(known, sizes, most)
            else:
                for place in product(*map(range, sizes)):
                    interpreter.interpreter_builder.grid_idx = place
                    self.fn(**known)
        except Exception as error:
            if triton.knobs.compilation.front_end_debugging:
                raise
            raise InterpreterError(repr(error)) from error

    def _run_together(self, values: Mapping[str, object], sizes: tuple[int, int, int], most: int) -> None:
        """Run the programs of a grid, at most so many together."""
        x, y, z = sizes
        places = np.stack(np.unravel_index(np.arange(prod(sizes)), (z, y, x))[::-1]).astype(np.int32)  # [3, programs]
        waiting = [places[:, first : first + most] for first in range(0, prod(sizes), most)]
        builder = interpreter.interpreter_builder
        while waiting:
            together = waiting.pop()
            builder.grid_idx = [each[0] if (each == each[0]).all() else each[:, None, None] for each in together]
            builder.has_stored = False
            try:
                self.fn(**values)
            except (ProgramsDiverge, InterpreterError) as error:
                groups = cause_of(error)
                if builder.has_stored or groups is None:
                    raise
                waiting += [together[:, groups.condition], together[:, ~groups.condition]]


def cause_of(error: BaseException | None) -> ProgramsDiverge | None:
    """Return the divergence that is behind an error: each function of a kernel raises an error of its own."""
    while error is not None and not isinstance(error, ProgramsDiverge):
        error = error.__cause__
    return error


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
