"""BodyBudget: limits the memory of all bodies that are being read, so that many large ones cannot exhaust it."""

from types import TracebackType
from typing import Self

from tetrad.services.errors import Overloaded


class BodyBudget:
    """The memory budget of all bodies together.

    Args:
        max_bytes: maximum size of all bodies at a time.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0

    def open(self) -> "BodyShare":
        """Return a share for one body."""
        return BodyShare(self)

    def take(self, num_bytes: int, num_before: int) -> None:
        """Count received bytes of a body; Overloaded beyond the budget. A single body is always accepted.

        Args:
            num_bytes: the number of new bytes.
            num_before: the number of bytes of this body that were counted before.
        """
        if self.num_bytes > num_before and self.num_bytes + num_bytes > self._max_bytes:
            text = f"Bodies of {self.num_bytes} bytes are being read; at most {self._max_bytes} are taken together."
            raise Overloaded(f"{text} Try again later.")
        self.num_bytes += num_bytes


class BodyShare:
    """The share of one body in the budget, until it has been parsed.

    Args:
        budget: the budget of all bodies.
    """

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Count received bytes; Overloaded beyond the budget."""
        self._budget.take(num_bytes, self._num_bytes)
        self._num_bytes += num_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._budget.num_bytes -= self._num_bytes
