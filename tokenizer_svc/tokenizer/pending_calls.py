"""PendingCalls: counts the unanswered calls, and limits the bytes of their texts and of their media.

Used by the servicer on its event loop, before it processes a text or an image. Each frontend limits its own calls; these limits
apply to all frontends together.
"""

import asyncio
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


class PendingCalls:
    """The unanswered calls of one tokenizer.

    Args:
        max_text_bytes: maximum bytes of texts and conversations.
        max_media_bytes: maximum bytes of media.

    Attributes:
        texts, media: the bytes of all calls.
    """

    def __init__(self, max_text_bytes: int, max_media_bytes: int) -> None:
        self.texts = PendingBytes(max_text_bytes, what="Texts", option="max_pending_text_bytes")
        self.media = PendingBytes(max_media_bytes, what="Media", option="max_pending_media_bytes")
        self._calls: set[asyncio.Future[None]] = set()

    @contextlib.contextmanager
    def admit(self, num_text_bytes: int, num_media_bytes: int) -> Iterator[None]:
        """Count a call with its bytes while the context is open. Raises Overloaded if texts or media exceed their limit."""
        with self.count(), self.texts.admit(num_text_bytes), self.media.admit(num_media_bytes):
            yield

    @contextlib.contextmanager
    def count(self) -> Iterator[None]:
        """Count a call while the context is open."""
        call = asyncio.get_running_loop().create_future()
        self._calls.add(call)
        try:
            yield
        finally:
            self._calls.discard(call)
            call.set_result(None)

    async def wait_none(self) -> None:
        """Wait until no call is unanswered."""
        while self._calls:
            await asyncio.wait(self._calls)
