"""Plan orders: messages by which the leader has every member run a plan, or encode an image, as it does itself.

A member applies the same plans to the same state, so an order has the plan, and what only the leader knows: the requests that
it has found failed, and whether a new engine core began. Orders are MessagePack; an array is its type, its shape and its bytes.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tetrad.services.errors import InternalError, TetradError
from tetrad.worker_svc.core.plan import EncoderItem, SchedulerOutput

_WORD = 8


@dataclass(frozen=True, slots=True)
class PlanOrder:
    """An Order: a plan, and what the leader adds to it.

    Attributes:
        plan: the plan; None: the order is to encode `item`.
        item: an image to encode; None: the order is to run `plan`.
        failed: handles of requests to set aside before the step.
        is_first: whether all earlier requests and images are forgotten before.
    """

    plan: SchedulerOutput | None = None
    item: EncoderItem | None = None
    failed: tuple[int, ...] = ()
    is_first: bool = False


def encode_order(order: PlanOrder) -> npt.NDArray[np.int64]:
    """Return the numbers of an order: the length of the message in bytes, then the message."""
    content = _ENCODER.encode(order)
    padded = bytearray(content + bytes(-len(content) % _WORD))
    return np.concatenate([[len(content)], np.frombuffer(padded, np.int64)])


def decode_order(numbers: npt.NDArray[np.int64], _: object = None) -> PlanOrder:
    """Return the order, which has no floats; raise msgspec.ValidationError if the message is none."""
    order: PlanOrder = _DECODER.decode(numbers[1:].tobytes()[: int(numbers[0])])
    return order


def _encode_value(value: Any) -> Any:
    """Return an array, or the error of a request that a rank cannot run, as values of MessagePack."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes()
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, TetradError):
        return value.message  # members return no results: it matters only that there is an error
    raise NotImplementedError(f"A plan has no {type(value)}.")


def _decode_value(kind: Any, value: Any) -> Any:
    if kind is TetradError:
        return InternalError(value)
    dtype, shape, content = value
    return np.frombuffer(bytearray(content), np.dtype(dtype)).reshape(shape)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_value)
_DECODER = msgspec.msgpack.Decoder(PlanOrder, dec_hook=_decode_value)
