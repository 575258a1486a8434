"""Counts the launches of a step in Triton's interpreter: kernels, operations of torch, and graphs."""

import contextlib
from collections.abc import Iterator

from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import interpreter

from tetrad.worker_svc.cuda.device import accelerator

NO_LAUNCHES = ("view", "_unsafe_view", "reshape", "slice", "select", "as_strided", "expand", "permute", "transpose", "t")
NO_LAUNCHES += ("unsqueeze", "squeeze", "split", "unbind", "alias", "detach", "diagonal", "unfold", "split_with_sizes", "chunk")
NO_LAUNCHES += ("empty", "empty_like", "new_empty", "empty_strided", "view_as_complex", "view_as_real", "lift_fresh", "set_")


class Launches(TorchDispatchMode):
    """Counts while it is entered.

    Attributes:
        kernels: launched kernels and operations, one by one.
        graphs: replayed graphs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels = self.graphs = 0
        self._is_on = True
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> "Launches":
        launch, replay = interpreter.GridExecutor.__call__, accelerator._HostGraph.replay

        def launched(kernel, *args, **kwargs):
            self.kernels += self._is_on
            with self._off():
                return launch(kernel, *args, **kwargs)

        def replayed(graph):
            self.graphs += self._is_on
            with self._off():
                replay(graph)

        for owner, name, counted, original in (
            (interpreter.GridExecutor, "__call__", launched, launch),
            (accelerator._HostGraph, "replay", replayed, replay),
        ):
            setattr(owner, name, counted)
            self._undo.callback(setattr, owner, name, original)
        return super().__enter__()

    def __exit__(self, *failure: object) -> None:
        self._undo.close()
        super().__exit__(*failure)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.kernels += self._is_on and func.overloadpacket.__name__ not in NO_LAUNCHES
        return func(*args, **(kwargs or {}))

    @contextlib.contextmanager
    def _off(self) -> Iterator[None]:
        before, self._is_on = self._is_on, False
        try:
            yield
        finally:
            self._is_on = before
