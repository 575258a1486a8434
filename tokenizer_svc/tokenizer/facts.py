"""Facts: the properties of a loaded tokenizer, apart from the Rust object that does the work.

Made by the loaders, read by everyone else, never changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer as RustTokenizer


@dataclass(frozen=True)
class SpecialTokens:
    """Texts of the tokens with a role; None where the model has none."""

    bos: str | None = None
    eos: str | None = None
    pad: str | None = None
    unk: str | None = None

    def named(self) -> dict[str, str]:
        """Return {"bos_token": "<s>", ...} without those that are missing: the names that templates use."""
        roles = {"bos_token": self.bos, "eos_token": self.eos, "pad_token": self.pad, "unk_token": self.unk}
        return {name: text for name, text in roles.items() if text is not None}


@dataclass(frozen=True)
class LoadedTokenizer:
    """The properties that a loader read from a model's files.

    Args:
        rust: encodes and decodes; without truncation or padding.
        special: tokens with a role.
        eos_token_ids: every id that ends generation.
        chat_templates: "default" and perhaps "tool_use"; empty: the model has none.
        max_length: longest sequence in tokens, if known.
        config: the model's config.json, or the equivalent GGUF metadata.
        generation_config: sampling parameters that the model's authors recommend; empty: none.
        release_config: the same, chosen by this release for a built-in model. It may change between releases, so it is no part
            of the files and their hash: a frontend takes tokenizers of both releases for the same while they are upgraded.
        pair_template: chat template that writes the pairs of texts of a cross-encoder; None: the tokenizer joins them.
        prompts: texts that the authors put before an input, by what it is for (sentence-transformers' prompts).
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
