"""MessageRoom: limits the bytes of a prompt's preprocessed images, which travel in one message.

Counts images while they are preprocessed: a small request may name many images, or one of the cache many times, and would
otherwise need gigabytes before its answer is found too large. Knows no protobuf.
"""

from tetrad.services.errors import InvalidRequest
from tetrad.services.message_size import too_large


class MessageRoom:
    """The room in the answer to one request.

    Args:
        num_images: number of images of the prompt.
        max_bytes: maximum bytes of a message.
    """

    def __init__(self, num_images: int, max_bytes: int) -> None:
        self._num_images, self._max_bytes = num_images, max_bytes
        self._num_taken = self._num_bytes = 0

    def take(self, num_bytes: int) -> None:
        """Count an image's tensors. Raises InvalidRequest if they do not fit with those before."""
        self._num_taken += 1
        self._num_bytes += num_bytes
        if self._num_bytes > self._max_bytes:
            raise images_too_large(f"{self._num_taken} of its {self._num_images}", self._num_bytes, self._max_bytes)


def images_too_large(which: str, num_bytes: int, limit: int) -> InvalidRequest:
    """Return the error for images whose tensors do not fit a message; `which` gives their number."""
    error = too_large(f"The prompt with {which} preprocessed image(s)", num_bytes, limit, field="media")
    advice = "Send fewer or smaller images, or limit their size with mm_processor_kwargs."
    return InvalidRequest(f"{error.message} {advice}", field=error.field, reason=error.reason)
