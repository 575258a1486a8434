"""PendingBytes: limits the bytes of texts, and those of images, in unanswered calls.

Called by the servicer on its event loop, before it processes a text or an image. Each frontend limits its own; this limit
applies to all frontends together.
"""

import contextlib
from collections.abc import Iterator

from tetrad.services.errors import Overloaded

_RETRY_AFTER_S = 1.0


class PendingBytes:
    """The total size of the texts, or of the images, of all calls.

    Args:
        max_bytes: maximum bytes of all together.
        what: "Texts" or "Images", for errors.
        option: the setting that gives the limit.
    """

    def __init__(self, max_bytes: int, *, what: str, option: str) -> None:
        self._max_bytes, self._what, self._option = max_bytes, what, option
        self._num_bytes = 0

    @contextlib.contextmanager
    def admit(self, num_bytes: int) -> Iterator[None]:
        """Count a text or image while the context is open.

        Raises Overloaded if it exceeds the limit; a lone one is always admitted.
        """
        if self._num_bytes and self._num_bytes + num_bytes > self._max_bytes:
            text = f"{self._what} of {self._num_bytes} bytes wait at this tokenizer; at most {self._max_bytes} are taken"
            text += f" ({self._option}), and this call brings {num_bytes}. Try again later."
            raise Overloaded(text, retry_after_s=_RETRY_AFTER_S)
        self._num_bytes += num_bytes
        try:
            yield
        finally:
            self._num_bytes -= num_bytes
