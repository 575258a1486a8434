"""ProgressBar: shows the progress of a batch on stderr, if tqdm is installed or the caller passes a bar."""

import contextlib
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from tetrad.frontend.request.outputs import RequestOutput


class Bar(Protocol):
    """The used part of a tqdm bar."""

    def update(self, n: float) -> object:
        """Advance the bar by `n`."""

    def set_postfix_str(self, s: str, refresh: bool) -> None:
        """Set the text after the counts."""

    def close(self) -> None:
        """End the bar at its present count."""


UseTqdm = bool | Callable[..., Any]
"""Whether to show a bar; or a function that makes it, called like tqdm: `functools.partial(tqdm, mininterval=5)`."""


class ProgressBar:
    """Counts requests and their tokens per second, of prompts and outputs. Methods may be called from another thread.

    Args:
        total: number of requests of the batch.
        use_tqdm: whether to show a bar, or a function that makes it.
        what: text before the bar.
        shows_speed: whether requests have outputs, whose tokens are counted.
    """

    def __init__(self, total: int, *, use_tqdm: UseTqdm, what: str = "Processed prompts", shows_speed: bool = True) -> None:
        self._bar: Bar | None = None
        self._started_at = time.monotonic()
        self._num_input_tokens = self._num_output_tokens = 0
        make = _bar_maker(use_tqdm)
        if make is not None:
            postfix = {"postfix": _speed(0, 0, 1.0)} if shows_speed else {}
            self._bar = make(total=total, desc=what, dynamic_ncols=True, **postfix)

    def add(self, output: RequestOutput) -> None:
        """Count a finished request."""
        self._num_input_tokens += len(output.prompt_token_ids)
        self._num_output_tokens += sum(len(each.token_ids) for each in output.outputs)
        if self._bar is not None:
            passed_s = max(time.monotonic() - self._started_at, 1e-9)
            self._bar.set_postfix_str(_speed(self._num_input_tokens, self._num_output_tokens, passed_s), refresh=False)
        self.step()

    def step(self) -> None:
        """Count a request without an output."""
        if self._bar is not None:
            self._bar.update(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()


def _bar_maker(use_tqdm: UseTqdm) -> Callable[..., Bar] | None:
    if callable(use_tqdm):
        return use_tqdm
    if not isinstance(use_tqdm, bool):
        raise TypeError(f"use_tqdm must be a bool or a callable that makes a bar, got {type(use_tqdm).__name__}")
    if use_tqdm:
        with contextlib.suppress(ImportError):
            from tqdm import tqdm  # images of services are without it

            return tqdm
    return None


def _speed(num_input_tokens: int, num_output_tokens: int, passed_s: float) -> str:
    return f"est. speed input: {num_input_tokens / passed_s:.2f} toks/s, output: {num_output_tokens / passed_s:.2f} toks/s"
