"""PendingTexts: limits the bytes of texts in unanswered calls.

Called by the servicer on its event loop, before it processes a text. Each frontend limits its own texts; this limit applies to
all frontends together.
"""

import contextlib
from collections.abc import Iterator

from tetrad.services.errors import Overloaded

_RETRY_AFTER_S = 1.0


class PendingTexts:
    """The total size of the texts of all calls.

    Args:
        max_bytes: maximum bytes of all texts together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0

    @contextlib.contextmanager
    def admit(self, num_bytes: int) -> Iterator[None]:
        """Count a text while the context is open. Raises Overloaded if it exceeds the limit; a lone text is always admitted."""
        if self._num_bytes and self._num_bytes + num_bytes > self._max_bytes:
            text = f"Texts of {self._num_bytes} bytes wait at this tokenizer; at most {self._max_bytes} are taken"
            text += f" (max_pending_text_bytes), and this call brings {num_bytes}. Try again later."
            raise Overloaded(text, retry_after_s=_RETRY_AFTER_S)
        self._num_bytes += num_bytes
        try:
            yield
        finally:
            self._num_bytes -= num_bytes
