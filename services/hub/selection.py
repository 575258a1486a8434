"""File selection: selects the files of a repository that a model needs.

Knows names only. Safetensors have precedence over GGUF files if a repository has both and no file is named; PyTorch files are
used if it has neither. The same weights in other formats (*.onnx, consolidated.safetensors beside model.safetensors) are not
selected.
"""

import fnmatch
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

INDEX = "model.safetensors.index.json"
PYTORCH_INDEX = "pytorch_model.bin.index.json"
_TEXTS = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt", "additional_chat_templates/*.jinja", "*.py")
"""Patterns of configuration, tokenizer, chat templates and a model's own code; one without a folder means the top level."""
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_PYTORCH = re.compile(r"pytorch_model(-\d{5}-of-\d{5})?\.bin")
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".h5", ".onnx")
_PROJECTOR = "mmproj"
"""Part of the names of files with an image encoder instead of a language model."""
_DEFAULT_QUANTIZATION = "Q4_K_M"
"""Default for a repository with several files, as in llama.cpp."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The files of a repository that a model needs.

    Attributes:
        files: names of all files, config.json first.
        gguf: the .gguf file to open, or the first of its parts. None: the model is the directory.
    """

    files: tuple[str, ...]
    gguf: str | None = None


class NothingToSelect(ValueError):
    """The repository lacks the needed files; the text states in one line what it has instead."""


def select_files(names: Collection[str], gguf: str = "", *, with_weights: bool = True) -> Selection:
    """Return the files of a repository that a model needs.

    Args:
        names: names of the repository's files.
        gguf: requested file name or quantization; "": none.
        with_weights: whether weights are needed. A GGUF file is selected in any case, since it contains the tokenizer.

    Raises:
        NothingToSelect: there are no such weights.
    """
    texts = sorted((name for name in names if _is_text(name)), key=lambda name: (name != "config.json", name))
    ggufs = sorted(name for name in names if name.endswith(".gguf") and _PROJECTOR not in name.lower())
    safetensors = _safetensors(names)
    if gguf or (ggufs and not safetensors):
        parts = _choose_gguf(ggufs, gguf)
        return Selection((*texts, *parts), parts[0])
    if not with_weights:
        return Selection(tuple(texts))
    if "config.json" not in names:
        raise NothingToSelect("it has no config.json and no .gguf file, so it is not a language model's repository")
    if not (weights := safetensors or _pytorch_files(names)):
        raise NothingToSelect(f"it has no *.safetensors and no *.gguf file, only {_other_weights(names)}")
    return Selection((*texts, *weights))


def _is_text(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) and name.count("/") == pattern.count("/") for pattern in _TEXTS)


def _safetensors(names: Iterable[str]) -> list[str]:
    """Return the weights at the repository's top level: the index's shards, model.safetensors, or all other safetensors."""
    every = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
    shards = [name for name in every if re.fullmatch(r"model-\d{5}-of-\d{5}\.safetensors", name)]
    if shards and INDEX in names:
        return shards
    return ["model.safetensors"] if "model.safetensors" in every else every


def _pytorch_files(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if _PYTORCH.fullmatch(name))


def _choose_gguf(files: list[str], wanted: str) -> list[str]:
    """Return the parts of the chosen model."""
    exact = [file for file in files if _SHARD.sub(".gguf", file) == _SHARD.sub(".gguf", wanted)]
    found = exact or ([file for file in files if _is_meant(file, wanted)] if wanted else _default(files))
    models = {_SHARD.sub("", file) for file in found}
    if len(models) == 1:
        return found
    listed = ", ".join(dict.fromkeys(_SHARD.sub(".gguf", file) for file in files)) or "no .gguf file"
    if not found:
        raise NothingToSelect(f"it has no .gguf file {wanted!r}; it has {listed}" if wanted else f"it has {listed}")
    raise NothingToSelect(f"several .gguf files could be meant; add one after a colon: {listed}")


def _default(files: list[str]) -> list[str]:
    usual = [file for file in files if _is_meant(file, _DEFAULT_QUANTIZATION)]
    return usual or files


def _is_meant(file: str, wanted: str) -> bool:
    """Return whether a file has this name or this quantization; for the parts of a split file, the name of the whole counts."""
    name, wanted = _SHARD.sub(".gguf", file).lower(), wanted.lower()
    if wanted.endswith(".gguf"):
        whole = _SHARD.sub(".gguf", wanted)
        return name == whole or name.rpartition("/")[2] == whole
    return re.search(rf"(^|[-._/]){re.escape(wanted)}\.gguf$", name) is not None


def _other_weights(names: Collection[str]) -> str:
    kinds = [f"*{suffix}" for suffix in _OTHER_WEIGHTS if any(name.endswith(suffix) for name in names)]
    return ", ".join(kinds) or "files without weights"
