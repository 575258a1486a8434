"""Functions that tests of apply_model and collective_rpc run in workers, which import this module."""

import os
import time
from typing import Any

NOT_A_FUNCTION = 3


def size_of(model: Any) -> list[Any]:
    return [model.info.vocab_size, type(model).__name__, os.getpid()]


def add(worker: Any, first: int, *, second: int) -> list[Any]:
    return [first + second, type(worker).__name__]


def sleep(worker: Any, seconds: float) -> None:
    time.sleep(seconds)


def fail(worker: Any) -> None:
    raise RuntimeError("on purpose")


def opaque(worker: Any) -> object:
    return object()
