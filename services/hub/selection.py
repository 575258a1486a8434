"""File selection: selects the files of a repository that a model needs.

Knows names only. Safetensors win over GGUF files where a repository has both and none is named; PyTorch files count where it
has neither. The same weights in unsupported formats (*.onnx, consolidated.safetensors beside model.safetensors) are left out.
"""

import fnmatch
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

INDEX = "model.safetensors.index.json"
PYTORCH_INDEX = "pytorch_model.bin.index.json"
_TEXTS = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt", "additional_chat_templates/*.jinja", "*.py")
"""Configuration, tokenizer, chat templates and a model's own code; a pattern without a folder means the repository's top."""
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_PYTORCH = re.compile(r"pytorch_model(-\d{5}-of-\d{5})?\.bin")
_OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".h5", ".onnx")
_PROJECTOR = "mmproj"
"""In the names of files that hold an image encoder, not a language model."""
_DEFAULT_QUANTIZATION = "Q4_K_M"
"""llama.cpp's choice for a repository with several files."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The files of a repository that a model needs.

    Attributes:
        files: every file, config.json first.
        gguf: the .gguf file to open; the first part of several. None: the model is the directory.
    """

    files: tuple[str, ...]
    gguf: str | None = None


class NothingToSelect(ValueError):
    """A repository without what is needed; says in one line what it has instead."""


def select_files(names: Collection[str], gguf: str = "", *, with_weights: bool = True) -> Selection:
    """Return the selection of a repository's files that a model needs.

    Args:
        names: of the repository's files.
        gguf: file name or quantization that is asked for; "": none.
        with_weights: whether weights are needed. The tokenizer of a GGUF file comes with them.

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
    """Return the weights at the repository's top: what the index names, model.safetensors, or whatever else there is."""
    every = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
    shards = [name for name in every if re.fullmatch(r"model-\d{5}-of-\d{5}\.safetensors", name)]
    if shards and INDEX in names:
        return shards
    return ["model.safetensors"] if "model.safetensors" in every else every


def _pytorch_files(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if _PYTORCH.fullmatch(name))


def _choose_gguf(files: list[str], wanted: str) -> list[str]:
    """Return the parts of one model."""
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
    """Return whether a file has this name or this quantization; the parts of a split file have both."""
    name, wanted = _SHARD.sub(".gguf", file).lower(), wanted.lower()
    if wanted.endswith(".gguf"):
        whole = _SHARD.sub(".gguf", wanted)
        return name == whole or name.rpartition("/")[2] == whole
    return re.search(rf"(^|[-._/]){re.escape(wanted)}\.gguf$", name) is not None


def _other_weights(names: Collection[str]) -> str:
    kinds = [f"*{suffix}" for suffix in _OTHER_WEIGHTS if any(name.endswith(suffix) for name in names)]
    return ", ".join(kinds) or "files without weights"
