"""ImageModel: the facts about images in a model's files: the processor's settings, the tokens around an image, the config.

Made once at start from the loaded tokenizer and the image process's answer; read by the rules of the families. Knows no pixels.
"""

from collections.abc import Mapping
from typing import Any

from tetrad.tokenizer_svc.media.model_files import ModelFiles
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer

_ID_KEYS = ("image_token_id", "image_token_index")

BESIDE_OTHERS = "beside_others"
"""Name of an internal setting, which no caller can give: whether the prompt of an image has further images."""


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
        self.mark_id, self.mark = self.mark_of(_ID_KEYS)
