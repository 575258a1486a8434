"""Facts: the properties of a loaded tokenizer, beside the Rust object that encodes and decodes.

Made by the loaders, read by all other modules, never changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer as RustTokenizer

UNLIMITED = 1 << 31
"""A maximum length from here on means "no limit": transformers writes 10^30."""


@dataclass(frozen=True)
class SpecialTokens:
    """The texts of the tokens with a role; None if the model has no such token.

    Attributes:
        more: the tokens with other roles, by the name that templates use: {"sep_token": "</s>", ...}.
    """

    bos: str | None = None
    eos: str | None = None
    pad: str | None = None
    unk: str | None = None
    more: Mapping[str, str] = field(default_factory=dict, hash=False)

    def named(self) -> dict[str, str]:
        """Return the existing ones by the names that templates use: {"bos_token": "<s>", ...}."""
        roles = {"bos_token": self.bos, "eos_token": self.eos, "pad_token": self.pad, "unk_token": self.unk}
        return {name: text for name, text in roles.items() if text is not None} | dict(self.more)


@dataclass(frozen=True)
class LoadedTokenizer:
    """The properties that a loader read from a model's files.

    Args:
        rust: the tokenizer, which encodes and decodes without truncation or padding.
        special: texts of the tokens with a role.
        eos_token_ids: all ids that end generation.
        chat_templates: templates by name, "default" and possibly "tool_use"; empty: the model has none.
        max_length: maximum number of tokens of a sequence; None: unknown.
        config: the model's config.json, or the equivalent GGUF metadata.
        generation_config: sampling parameters that the model's authors recommend; empty: none.
        release_config: sampling parameters that this release recommends for a built-in model. They may change between releases,
            so they are not part of the files and their hash: during an upgrade, tokenizers of both releases count as equal.
        pair_template: chat template that writes the pairs of texts of a cross-encoder; None: the tokenizer joins them.
        image_processor: settings of the model's image processor (preprocessor_config.json); empty: it reads no images.
        feature_extractor: settings of the model's feature extractor for audio (preprocessor_config.json); empty: it reads none.
        video_processor: values of video_preprocessor_config.json.
        processor: values of processor_config.json.
        prompts: texts to put before an input, by the name of its purpose (sentence-transformers' prompts).
    """

    rust: RustTokenizer
    special: SpecialTokens
    eos_token_ids: tuple[int, ...]
    chat_templates: Mapping[str, str]
    max_length: int | None
    config: Mapping[str, Any] = field(default_factory=dict)
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    release_config: Mapping[str, Any] = field(default_factory=dict)
    prompts: Mapping[str, str] = field(default_factory=dict)
    pair_template: str | None = None
    image_processor: Mapping[str, Any] = field(default_factory=dict)
    feature_extractor: Mapping[str, Any] = field(default_factory=dict)
    video_processor: Mapping[str, Any] = field(default_factory=dict)
    processor: Mapping[str, Any] = field(default_factory=dict)
