"""ModelFiles: the files of a model that describe its media. Read by the rooms of images, audio and video; knows no rules."""

from collections.abc import Mapping, Sequence
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer


class ModelFiles:
    """The files of a model that describe its media.

    Args:
        tokenizer: the model's tokenizer, with these files.

    Attributes:
        config: config.json.
        processor: processor_config.json.
        image_processor: preprocessor_config.json of a model that reads images.
        feature_extractor: preprocessor_config.json of a model that reads audio.
        video_processor: video_preprocessor_config.json.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        facts = tokenizer.facts
        self._tokenizer = tokenizer
        self.config, self.processor, self.image_processor = facts.config, facts.processor, facts.image_processor
        self.feature_extractor = facts.feature_extractor
        self.video_processor = facts.video_processor
        self._named = {**self.processor, **facts.special.more}

    @property
    def vision(self) -> Mapping[str, Any]:
        """config.json's vision_config."""
        found = self.config.get("vision_config")
        return found if isinstance(found, dict) else {}

    def mark_of(self, keys: Sequence[str]) -> tuple[int, str]:
        """Return id and text of the token that embeddings replace; config.json has its id under one of the keys.

        Raises ModelError if it has none.
        """
        found = next((self.config[key] for key in keys if key in self.config), None)
        if not isinstance(found, int) or not 0 <= found < self._tokenizer.vocab_size:
            text = f"config.json has the token {found!r} for {keys[0]}, which is no id of the tokenizer."
            raise ModelError(text, field="model")
        [text] = self._tokenizer.token_strings([found])
        return found, text

    def named(self, role: str, default: str) -> str:
        """Return the text of the token that the model's files give a role ("fake_image_token")."""
        found = self._named.get(role)
        return found if isinstance(found, str) else default
