"""ImageModel: what a model's files say of its images: the processor's settings, the tokens around an image, the configuration.

Made once at start from the loaded tokenizer and the image process's answer; read by the rules of the families. Knows no pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer

_ID_KEYS = ("image_token_id", "image_token_index")


@dataclass(frozen=True)
class ProcessedImage:
    """The image processor's output for one image.

    Attributes:
        tensors: (dtype's name, shape, elements in row-major order) by transformers' names, without a dimension of images.
    """

    tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return self.tensors[name][1]

    def integers(self, name: str) -> Sequence[int]:
        """Return the elements of a tensor of int64."""
        return memoryview(self.tensors[name][2]).cast("q").tolist()


class ImageModel:
    """The facts that a family's rules read.

    Args:
        tokenizer: the model's tokenizer.
        settings: settings of the image processor, with its defaults.

    Attributes:
        settings: as given.
        config: the model's config.json.
        processor: values of processor_config.json.
        image_id: id of the token that an embedding of an image replaces.

    Raises ModelError if config.json names no such token.
    """

    def __init__(self, tokenizer: Tokenizer, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.config = tokenizer.facts.config
        self.processor = tokenizer.facts.processor
        self._tokenizer = tokenizer
        self.image_id = image_token_id(tokenizer)
        self._ids = lru_cache(maxsize=256)(self._encode)

    @property
    def image_text(self) -> str:
        """Text of the token with `image_id`."""
        return self._tokenizer.token_strings([self.image_id])[0]

    @property
    def vision(self) -> Mapping[str, Any]:
        """config.json's vision_config."""
        return self.config.get("vision_config") or {}

    def named(self, role: str, default: str) -> str:
        """Return the text of the token that the tokenizer's files give a role ("fake_image_token")."""
        return self._tokenizer.facts.special.more.get(role, default)

    def ids(self, text: str) -> Sequence[int]:
        """Return the token ids of a text within a prompt."""
        return self._ids(text)

    def _encode(self, text: str) -> Sequence[int]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))


def image_token_id(tokenizer: Tokenizer) -> int:
    """Return the id of the token that an image's embedding replaces. Raises ModelError if config.json names none."""
    found = next((tokenizer.facts.config[key] for key in _ID_KEYS if key in tokenizer.facts.config), None)
    if not isinstance(found, int) or not 0 <= found < tokenizer.vocab_size:
        raise ModelError(f"config.json has the image token {found!r}, which is no id of the tokenizer.", field="model")
    return found
