"""MessageRoom: limits the bytes of a prompt's preprocessed media, which travel in one message.

Counts items while they are preprocessed: a small request may name many, or one of the cache many times, and would otherwise
need gigabytes before its answer is found too large. Knows no protobuf.
"""

from tetrad.services.errors import InvalidRequest
from tetrad.services.message_size import too_large


class MessageRoom:
    """The room in the answer to one request.

    Args:
        num_items: number of items of the prompt.
        max_bytes: maximum bytes of a message.
    """

    def __init__(self, num_items: int, max_bytes: int) -> None:
        self._num_items, self._max_bytes = num_items, max_bytes
        self._num_taken = self._num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Count an item's tensors. Raises InvalidRequest if they do not fit with those before."""
        self._num_taken += 1
        self._num_bytes += num_bytes
        if self._num_bytes > self._max_bytes:
            raise media_too_large(f"{self._num_taken} of its {self._num_items}", self._num_bytes, self._max_bytes)


def media_too_large(which: str, num_bytes: int, limit: int) -> InvalidRequest:
    """Return the error for media whose tensors do not fit a message; `which` gives the number of items."""
    error = too_large(f"The prompt with {which} preprocessed media", num_bytes, limit, field="media")
    advice = "Send fewer or smaller media, or limit their size with mm_processor_kwargs."
    return InvalidRequest(f"{error.message} {advice}", field=error.field, reason=error.reason)
