r"""Pre-tokenizers: the patterns by which a byte-level BPE splits text before merging, by the name in `tokenizer.ggml.pre`.

Called by gguf_loader. The patterns are those of the models' own tokenizer.json; names with the same pattern are in one row. An
unknown name is an error: with wrong splits a model answers badly, without a visible reason.
"""

from collections.abc import Iterable

from tokenizers import Regex, pre_tokenizers

from tetrad.services.errors import ModelError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN35 = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
_LOWER_WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER_WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_SYMBOLS_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_LOWER_WORD}|{_UPPER_WORD}|\p{{N}}|{_SYMBOLS_AND_SPACE}"
_GPT4O = rf"{_LOWER_WORD}{_CONTRACTIONS}?|{_UPPER_WORD}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_SYMBOLS_AND_SPACE}"
_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\x{560}-\x{588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C8A}\x{2D00}-\x{2D2D}\x{A790}-\x{AB68}"
    r"\x{10570}-\x{105BC}\x{10D50}-\x{10D85}\x{16E40}-\x{16E7F}\x{1D400}-\x{1DFFF}]]"
)
"""Letters of scripts with two cases, except scripts that are missing in DeepSeek's list."""

_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2")

_PATTERNS: dict[str, str] = {
    **dict.fromkeys((*_LLAMA3_NAMES, "smaug-bpe", "dbrx", "glm4", "chatglm-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"), _QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    "tekken": _TEKKEN,
    "qwen35": _QWEN35,
    "seed-coder": _QWEN2.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}]+"),
    "bloom": r" ?[^\s(|).,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C}]+",
}
_SEQUENCES: dict[str, tuple[str, ...]] = {
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?{_CASED}+",
        r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
        r"\s+$",
        r"[\x{800}-\x{9FA5}\x{AC00}-\x{D7FF}]+",
        r"\p{N}",
    ),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+",
        r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}
"""Several patterns that split a text one after the other."""
_FALCON = "falcon"
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")
_PLAIN = ("default", "gpt-2", "gpt2", "mpt", "olmo", "jais", "phi-2", "roberta-bpe", "granite-docling", "exaone4")

IGNORES_MERGES = frozenset((*_LLAMA3_NAMES, "tekken"))
"""Names whose tokenizers encode a word of the vocabulary as one token, even if no merges produce it."""

ADDS_BOS = frozenset((*_LLAMA3_NAMES, "tekken"))
"""Names whose tokenizers add BOS if the file has no setting for it."""

NORMALIZES_NFC = frozenset(("qwen2", "qwen35", "deepseek-r1-qwen", "megrez", "mpt", "olmo"))
"""Names whose tokenizers first normalize text to Unicode's composed form. MPT, Mamba and OLMo have GPT-NeoX's tokenizer."""


def byte_level_pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer called `name`; it also maps bytes to the vocabulary's letters. Raises ModelError if unknown."""
    if name in _PLAIN:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in _SINGLE_DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    if name == _FALCON:
        punctuation, digits = pre_tokenizers.Punctuation(behavior="contiguous"), pre_tokenizers.Digits(individual_digits=False)
        words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        return pre_tokenizers.Sequence([punctuation, words, digits, pre_tokenizers.Split(Regex("[0-9]{3}"), "isolated")])
    patterns = _SEQUENCES.get(name) or ((_PATTERNS[name],) if name in _PATTERNS else ())
    if patterns:
        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    raise ModelError(
        f"Pre-tokenizer {name!r} is not supported; supported are {_listed(known_pre_tokenizers())}.", field="model"
    )


def known_pre_tokenizers() -> tuple[str, ...]:
    """Return the names that `byte_level_pre_tokenizer` accepts, in alphabetical order."""
    return tuple(sorted((*_PLAIN, *_SINGLE_DIGITS, *_PATTERNS, *_SEQUENCES, _FALCON)))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
