"""PendingTexts: bounds the bytes of texts in unanswered calls.

Called by the servicer on its event loop, before it works on a text. Each frontend bounds its own texts; this limit holds for
any number of frontends.
"""

import contextlib
from collections.abc import Iterator

from tetrad.services.errors import Overloaded

_RETRY_AFTER_S = 1.0


class PendingTexts:
    """The texts of all calls.

    Args:
        max_bytes: most bytes of them.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0

    @contextlib.contextmanager
    def admit(self, num_bytes: int) -> Iterator[None]:
        """Count a text while the context is open; Overloaded if there is no room for it. A text that is alone has room."""
        if self._num_bytes and self._num_bytes + num_bytes > self._max_bytes:
            text = f"Texts of {self._num_bytes} bytes wait at this tokenizer; at most {self._max_bytes} are taken"
            text += f" (max_pending_text_bytes), and this call brings {num_bytes}. Try again later."
            raise Overloaded(text, retry_after_s=_RETRY_AFTER_S)
        self._num_bytes += num_bytes
        try:
            yield
        finally:
            self._num_bytes -= num_bytes
