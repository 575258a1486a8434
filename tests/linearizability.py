"""Checks whether a history of concurrent calls could have come from one object with one call at a time.

The search of Wing and Gong, without the states that were seen before (Lowe): take any call that began before every other one
ended, apply it, continue with the rest. Exponential at worst; histories of some dozen calls take milliseconds.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any


@dataclass(frozen=True)
class Call:
    """One call. `answer` is None if none came: it may have taken effect before its end, or never."""

    began: int
    ended: float
    name: str
    argument: Any
    answer: Any


Step = Callable[[Hashable, Call], Iterable[Hashable]]
"""What the object may be after a call that has this answer; nothing: the call cannot have it in this state."""


class Recorder:
    """Notes calls in the order in which they begin and end."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._clock = count()

    async def note(self, name: str, argument: Any, awaitable: Any) -> Any:
        """Wait for a call and note it; return its answer."""
        began = next(self._clock)
        answer = None
        try:
            answer = await awaitable
            return answer
        finally:
            self.calls.append(Call(began, next(self._clock), name, argument, answer))


def order_of(calls: Sequence[Call], state: Hashable, step: Step) -> list[Call] | None:
    """Return an order in which the calls, one after the other, have the answers they have; None: there is none.

    Args:
        calls: in any order.
        state: before the first.
        step: how one call changes the object.
    """
    seen: set[tuple[frozenset[Call], Hashable]] = set()
    stack: list[tuple[frozenset[Call], Hashable, list[Call]]] = [(frozenset(calls), state, [])]
    while stack:
        left, state, order = stack.pop()
        if not left:
            return order
        if (left, state) in seen:
            continue
        seen.add((left, state))
        first_end = min((call.ended for call in left), default=math.inf)
        for call in left:
            if call.began < first_end:
                after = set(step(state, call)) | ({state} if call.answer is None else set())
                stack += [(left - {call}, each, [*order, call]) for each in after]
    return None


def told(calls: Iterable[Call]) -> str:
    """Return a history for people to read, in the order of its calls' beginnings."""
    return "\n".join(str(call) for call in sorted(calls, key=lambda call: call.began))
