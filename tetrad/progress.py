"""ProgressBar: how far a batch is, on stderr. Shows nothing where tqdm is not installed."""

import contextlib
import time
from types import TracebackType
from typing import Protocol, Self

from tetrad.frontend.outputs import RequestOutput


class _Bar(Protocol):
    def update(self, n: float) -> bool | None: ...
    def set_postfix_str(self, s: str, refresh: bool) -> None: ...
    def close(self) -> None: ...


class ProgressBar:
    """Counts finished requests and generated tokens a second. `add` may be called from another thread.

    Args:
        total: requests of the batch.
        enabled: whether to show anything.
    """

    def __init__(self, total: int, *, enabled: bool) -> None:
        self._bar: _Bar | None = None
        self._started_at = time.monotonic()
        self._num_tokens = 0
        if enabled:
            with contextlib.suppress(ImportError):
                from tqdm import tqdm  # an extra of the package: not every program wants bars

                self._bar = tqdm(total=total, desc="Processed prompts", unit="req", dynamic_ncols=True)

    def add(self, output: RequestOutput) -> None:
        """Count a finished request."""
        if self._bar is None:
            return
        self._num_tokens += sum(len(each.token_ids) for each in output.outputs)
        rate = self._num_tokens / max(time.monotonic() - self._started_at, 1e-9)
        self._bar.set_postfix_str(f"output: {rate:.1f} tok/s", refresh=False)
        self._bar.update(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()
