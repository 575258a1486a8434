"""Message sizes: the limits of gRPC messages, and the splitting of values into messages below them.

Used wherever values of several requests share a message. A message above its receiver's limit ends its stream, with all
requests on it. So a sender adds up encoded sizes and begins another message below the limit.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tetrad.services.errors import InvalidRequest

T = TypeVar("T")


DEFAULT_MAX_MESSAGE_BYTES = 32 << 20
"""Limit of a peer that announces none."""
MEDIA_MAX_MESSAGE_BYTES = 256 << 20
"""Limit that a local stack chooses for a model that reads images. The preprocessed images of a prompt share a message; one of
12 megapixels takes 36 MB."""
LEAST_MAX_MESSAGE_BYTES = 1 << 20
"""Minimum of the limit that a service may be configured with."""
BATCH_BYTES = 1_000_000
"""Maximum bytes of values that share a message although they could be sent separately. Every peer accepts a message of this
size, headers included, and it occupies no event loop for long."""


def batches(items: Iterable[T], size_of: Callable[[T], int], most: int = BATCH_BYTES) -> Iterator[list[T]]:
    """Yield the items in order, in lists of at most `most` bytes together; a larger single item has its own list."""
    batch: list[T] = []
    size = 0
    for item in items:
        item_size = size_of(item)
        if batch and size + item_size > most:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item_size
    if batch:
        yield batch


def too_large(what: str, num_bytes: int, limit: int, *, field: str | None = None) -> InvalidRequest:
    """Return the error for a value that does not fit a message; `what` begins the sentence."""
    text = f"{what} takes a message of {num_bytes} bytes; the limit is {limit} (max_message_bytes)."
    return InvalidRequest(text, field=field, reason="MESSAGE_TOO_LARGE")
