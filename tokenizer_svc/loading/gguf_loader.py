"""GGUF loader: builds a tokenizer from a .gguf file's own metadata.

Called by load.py. Knows the `tokenizer.ggml.*` keys and the two families that they describe: byte-level BPE (model "gpt2") and
SentencePiece BPE (models "llama", "gemma"). Where GGUF specifies nothing, it follows the models' original tokenizers.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, normalizers, processors
from tokenizers import Tokenizer as RustTokenizer
from tokenizers.models import BPE

from tetrad.services.errors import ModelError
from tetrad.services.models.gguf_container import Value, read_gguf_header
from tetrad.tokenizer_svc.loading.pre_tokenizers import ADDS_BOS, IGNORES_MERGES, NORMALIZES_NFC, byte_level_pre_tokenizer
from tetrad.tokenizer_svc.tokenizer.facts import UNLIMITED, LoadedTokenizer, SpecialTokens

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_PREFIX = "tokenizer.ggml."
# The value for "none" in files: -1, as an unsigned number.
_NO_TOKEN = 2**32 - 1
_MAX_MERGED_CHARS = 512
_ENDS_OF_TURNS = frozenset(
    (
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>", "<|call|>", "[EOT]", "<end_of_utterance>"),
        "<|observation|>",  # of GLM-4, whose calls end with the mark of their result
    )
)
"""Tokens that end a turn in chat templates. Many files give only the id that ends a text; llama.cpp looks for these, too."""
_PHI3, _PHI3_KEEPS_SPACE = "phi3", frozenset({"<unk>", "<s>", "<|endoftext|>"})
"""Phi-3's special tokens, except these, take the white space after them, as in transformers. GGUF has no field for it."""
_END_OF_MESSAGE, _END_OF_CALL = "<|end|>", "<|call|>"
"""In gpt-oss, which has the second token, the first one ends a message, and the turn goes on."""
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def load_gguf(path: Path) -> LoadedTokenizer:
    """Return the tokenizer that a GGUF file describes. Raises ModelError if it is broken or of an unsupported kind."""
    fields = _Fields(path, read_gguf_header(path).metadata)
    model = fields.text("model")
    build = _BUILDERS.get(model or "")
    if build is None:
        raise ModelError(
            f"{path} holds a tokenizer of kind {model!r}; supported are {', '.join(_BUILDERS)}. Give a tokenizer directory.",
            field="model",
        )
    rust = build(fields)
    _add_tokens(rust, fields)
    bos, eos, pad, unk = (fields.role(role) for role in ("bos", "eos", "padding", "unknown"))
    special = SpecialTokens(bos, eos, pad, unk)
    _add_post_processor(rust, fields, special)
    return LoadedTokenizer(
        rust=rust,
        special=special,
        eos_token_ids=fields.eos_token_ids(),
        chat_templates=fields.chat_templates(),
        max_length=fields.max_length(),
        config=fields.config(),
        generation_config=fields.generation_config(),
    )


class _Fields:
    """The metadata with checked types: a value of the wrong type means a broken file."""

    def __init__(self, path: Path, metadata: Mapping[str, Value]) -> None:
        self._path, self._metadata = path, metadata
        self.tokens: list[str] = self._list("tokens", str)
        self.token_types: list[int] = self._list("token_type", int) if self._has("token_type") else [_NORMAL] * len(self.tokens)
        if len(self.token_types) != len(self.tokens):
            raise self.broken(f"{len(self.token_types)} token types for {len(self.tokens)} tokens")

    def broken(self, what: str) -> ModelError:
        return ModelError(f"{self._path} has a broken tokenizer section: {what}.", field="model")

    def text(self, key: str) -> str | None:
        value = self._metadata.get(_PREFIX + key)
        return value if isinstance(value, str) else None

    def flag(self, key: str, *, default: bool) -> bool:
        return bool(self._metadata.get(_PREFIX + key, default))

    def token_id(self, key: str) -> int | None:
        """Return the id under `key`; None if there is none. Raises ModelError if no token has this id."""
        value = self._metadata.get(_PREFIX + key)
        if not isinstance(value, int) or value < 0 or value == _NO_TOKEN:
            return None
        if value >= len(self.tokens):
            raise self.broken(f"{key} is {value}, and ids are below {len(self.tokens)}")
        return value

    def role(self, role: str) -> str | None:
        token_id = self.token_id(f"{role}_token_id")
        return None if token_id is None else self.tokens[token_id]

    def eos_token_ids(self) -> tuple[int, ...]:
        ids = [self.token_id(f"{role}_token_id") for role in ("eos", "eot", "eom")]
        return tuple(dict.fromkeys(token_id for token_id in (*ids, *self._ends_of_turns()) if token_id is not None))

    def merges(self) -> list[tuple[str, str]]:
        pairs = []
        for merge in self._list("merges", str):
            # The search starts at the second character, since a space at the beginning belongs to the token.
            cut = merge.find(" ", 1)
            if cut < 0:
                raise self.broken(f"merge {merge!r} is not two tokens")
            pairs.append((merge[:cut], merge[cut + 1 :]))
        return pairs

    def scores(self) -> list[float]:
        scores = self._list("scores", float)
        if len(scores) != len(self.tokens):
            raise self.broken(f"{len(scores)} scores for {len(self.tokens)} tokens")
        return scores

    def chat_templates(self) -> dict[str, str]:
        prefix = "tokenizer.chat_template"
        named = {"default": self._metadata.get(prefix), "tool_use": self._metadata.get(f"{prefix}.tool_use")}
        return {name: text for name, text in named.items() if isinstance(text, str)}

    def max_length(self) -> int | None:
        value = self._metadata.get(f"{self._architecture()}.context_length")
        return value if isinstance(value, int) and 0 < value < UNLIMITED else None

    def config(self) -> dict[str, Any]:
        eos_ids = self.eos_token_ids()
        config = {
            "model_type": self._architecture(),
            "vocab_size": len(self.tokens),
            "bos_token_id": self.token_id("bos_token_id"),
            "eos_token_id": eos_ids[0] if len(eos_ids) == 1 else list(eos_ids) or None,
            "max_position_embeddings": self.max_length(),
        }
        return {key: value for key, value in config.items() if value is not None}

    def generation_config(self) -> dict[str, Any]:
        found = {name: self._metadata.get(f"general.sampling.{key}") for key, name in _SAMPLING.items()}
        return {name: value for name, value in found.items() if value is not None}

    def _ends_of_turns(self) -> list[int]:
        """Return the ids of tokens with which the chat template ends a turn."""
        template = self.chat_templates().get("default", "")
        written = {text for text in _ENDS_OF_TURNS if text in template}
        if _END_OF_CALL in written:
            written.discard(_END_OF_MESSAGE)
        kinds = zip(self.tokens, self.token_types, strict=True)
        return [token_id for token_id, (text, kind) in enumerate(kinds) if text in written and kind != _NORMAL]

    def takes_space(self, token: str) -> bool:
        """Return whether a special token takes the white space after it."""
        return self._architecture() == _PHI3 and self.text("model") == "llama" and token not in _PHI3_KEEPS_SPACE

    def _architecture(self) -> str:
        return str(self._metadata.get("general.architecture", ""))

    def _has(self, key: str) -> bool:
        return _PREFIX + key in self._metadata

    def _list(self, key: str, kind: type) -> list[Any]:
        value = self._metadata.get(_PREFIX + key)
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise self.broken(f"{_PREFIX}{key} is missing or not a list of {kind.__name__}")
        return value


def _byte_level(fields: _Fields) -> RustTokenizer:
    pre = fields.text("pre") or "default"
    pre_tokenizer = byte_level_pre_tokenizer(pre)
    rust = RustTokenizer(BPE(_vocabulary(fields), fields.merges(), ignore_merges=pre in IGNORES_MERGES))
    rust.pre_tokenizer = pre_tokenizer
    rust.decoder = decoders.ByteLevel()
    if pre in NORMALIZES_NFC:
        rust.normalizer = normalizers.NFC()
    return rust


def _sentence_piece(fields: _Fields) -> RustTokenizer:
    model = BPE(
        _vocabulary(fields),
        _merges_by_score(fields.tokens, fields.token_types, fields.scores()),
        unk_token=fields.role("unknown"),
        fuse_unk=True,
        byte_fallback=True,
    )
    rust = RustTokenizer(model)
    add_space = fields.flag("add_space_prefix", default=fields.text("model") == "llama")
    prepend: list[normalizers.Normalizer] = [normalizers.Prepend("▁")] if add_space else []
    rust.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    strip: list[decoders.Decoder] = [decoders.Strip(" ", 1, 0)] if add_space else []
    rust.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return rust


_BUILDERS: dict[str, Callable[[_Fields], RustTokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentence_piece,
    "gemma": _sentence_piece,
}


def _vocabulary(fields: _Fields) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(fields.tokens)}


def _merges_by_score(tokens: Sequence[str], token_types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return the merges that SentencePiece's scores imply: all pairs that form a token, those of the best token first."""
    # Each cut of a token makes two texts, so a very long token would take hours. No real vocabulary has one; it is skipped.
    kinds = (_NORMAL, _USER_DEFINED)
    ids = {token: i for i, token in enumerate(tokens) if token_types[i] in kinds and len(token) <= _MAX_MERGED_CHARS}
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, i in ids.items():
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[i], left, right, token[:cut], token[cut:]))
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]


def _add_tokens(rust: RustTokenizer, fields: _Fields) -> None:
    """Register the tokens that are found in a text before it is split or merged."""
    special, plain = [], []
    for token, kind in zip(fields.tokens, fields.token_types, strict=True):
        if kind in (_CONTROL, _UNKNOWN):
            special.append(AddedToken(token, normalized=False, special=True, rstrip=fields.takes_space(token)))
        elif kind == _USER_DEFINED:
            plain.append(AddedToken(token, normalized=False, special=False, rstrip=fields.takes_space(token)))
    rust.add_special_tokens(special)
    rust.add_tokens(plain)


def _add_post_processor(rust: RustTokenizer, fields: _Fields, special: SpecialTokens) -> None:
    adds_bos = fields.text("model") != "gpt2" or (fields.text("pre") or "default") in ADDS_BOS
    before = [special.bos] if special.bos is not None and fields.flag("add_bos_token", default=adds_bos) else []
    after = [special.eos] if special.eos is not None and fields.flag("add_eos_token", default=False) else []
    if before or after:
        rust.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            special_tokens=[(token, rust.token_to_id(token)) for token in {*before, *after}],
        )
