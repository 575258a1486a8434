"""Affinity: the key by which calls with images find their tokenizer, which keeps the images that it has preprocessed.

All turns of a conversation have the same key, so its images are preprocessed once. Conversations that have an image in common,
such as a logo, have different keys and spread over the tokenizers.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from tetrad.frontend.media.items import MODALITIES, MediaItem

_SAMPLE_BYTES = 4096
_DIGEST_BYTES = 16


def affinity_of(items: Sequence[MediaItem], texts: Sequence[str] = ()) -> bytes:
    """Return the key of a call: a digest of images, by name or by size and parts of the file, and texts.

    Two calls may have the same key by chance: a key only chooses a tokenizer. Empty: there are no images.
    """
    if not items:
        return b""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for item in items:
        known = item.uuid.encode() or item.data[:_SAMPLE_BYTES] + item.data[-_SAMPLE_BYTES:]
        digest.update(b"image %d %d " % (len(item.data) if not item.uuid else 0, len(known)) + known)
    for text in texts:
        encoded = text.encode(errors="surrogatepass")
        digest.update(b"text %d " % len(encoded) + encoded)
    return digest.digest()


def affinity_of_chat(messages: Sequence[Mapping[str, Any]], items: Sequence[MediaItem]) -> bytes:
    """Return the key of a conversation, the same for all its later turns.

    It is made of the images of the first turn, and of the texts of its users. The texts of system messages are left out: they
    may have the time of the day. A conversation whose images begin later has the key of its messages up to the first image.

    Args:
        messages: the messages, with a part {"type": "image"} for each image.
        items: all images, in the order of their parts.
    """
    if not items:
        return b""
    counts = [_num_items(message) for message in messages]
    num_messages = max(_first_turn(messages), next((at + 1 for at, count in enumerate(counts) if count), 0))
    texts = [text for each in messages[:num_messages] if each.get("role") == "user" for text in _texts(each)]
    return affinity_of(items[: sum(counts[:num_messages])], texts)


def _first_turn(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of messages before the first answer to a user."""
    has_user = False
    for place, message in enumerate(messages):
        if has_user and message.get("role") == "assistant":
            return place
        has_user = has_user or message.get("role") == "user"
    return len(messages)


def _parts(message: Mapping[str, Any]) -> Sequence[Any]:
    content = message.get("content")
    return content if isinstance(content, list | tuple) else [{"type": "text", "text": content}]


def _num_items(message: Mapping[str, Any]) -> int:
    return sum(isinstance(part, dict) and part.get("type") in MODALITIES for part in _parts(message))


def _texts(message: Mapping[str, Any]) -> list[str]:
    texts = (part.get("text") for part in _parts(message) if isinstance(part, dict))
    return [text for text in texts if isinstance(text, str)]
