"""ImageModel: what a model's files say of its images: the processor's settings, the tokens around an image, the configuration.

Made once at start from the loaded tokenizer and the image process's answer; read by the rules of the families. Knows no pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer

_ID_KEYS = ("image_token_id", "image_token_index")

BESIDE_OTHERS = "beside_others"
"""Name of the setting of an image whose prompt has several, beside those of the image processor; no caller has it."""


@dataclass(frozen=True)
class ProcessedImage:
    """The image processor's output for one image.

    Attributes:
        tensors: (dtype's name, shape, elements in row-major order) by transformers' names, without a dimension of images.
    """

    tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(len(data) for _, _, data in self.tensors.values())

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return self.tensors[name][1]

    def integers(self, name: str) -> Sequence[int]:
        """Return the elements of a tensor of int64."""
        return memoryview(self.tensors[name][2]).cast("q").tolist()


class ModelFiles:
    """The files of a model that describe its images.

    Args:
        tokenizer: the model's tokenizer, with these files.

    Attributes:
        config: config.json.
        processor: processor_config.json.
        image_processor: preprocessor_config.json.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        facts = tokenizer.facts
        self.config, self.processor, self.image_processor = facts.config, facts.processor, facts.image_processor

    @property
    def vision(self) -> Mapping[str, Any]:
        """config.json's vision_config."""
        found = self.config.get("vision_config")
        return found if isinstance(found, dict) else {}


class ImageModel(ModelFiles):
    """The facts that a family's rules read.

    Args:
        tokenizer: the model's tokenizer.
        settings: settings of the image processor, with its defaults.

    Attributes:
        settings: as given.
        mark_id: id of the token that an embedding of an image replaces.
        mark: its text.

    Raises ModelError if config.json names no such token.
    """

    def __init__(self, tokenizer: Tokenizer, settings: Mapping[str, Any]) -> None:
        super().__init__(tokenizer)
        self.settings = settings
        found = next((self.config[key] for key in _ID_KEYS if key in self.config), None)
        if not isinstance(found, int) or not 0 <= found < tokenizer.vocab_size:
            raise ModelError(f"config.json has the image token {found!r}, which is no id of the tokenizer.", field="model")
        self.mark_id = found
        [self.mark] = tokenizer.token_strings([found])
        self._named = {**self.processor, **tokenizer.facts.special.more}

    def named(self, role: str, default: str) -> str:
        """Return the text of the token that the model's files give a role ("fake_image_token")."""
        found = self._named.get(role)
        return found if isinstance(found, str) else default
