"""Local models: lists the models in this user's caches, of Tetrad and of the Hugging Face hub. Never uses the network."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tetrad.services.hub.cache import cached_models
from tetrad.services.hub.model_files import BUILTIN_MODELS, CacheSettings


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model in a cache.

    Attributes:
        name: name of the model for `tetrad serve`.
        revision: branch, tag or commit; empty: none.
        path: a directory or a .gguf file.
        size_bytes: total size of its files.
        is_whole: whether all necessary files are present.
    """

    name: str
    revision: str
    path: Path
    size_bytes: int
    is_whole: bool = True


def local_models() -> Iterator[LocalModel]:
    """Yield the models, those in Tetrad's own cache first."""
    for path in sorted((CacheSettings().directory() / "models").glob("*/*.gguf")):
        name = path.parent.name if path.parent.name in BUILTIN_MODELS else str(path)
        yield LocalModel(name, "", path, path.stat().st_size)
    for model in cached_models():
        revision = model.revision if model.revision != "main" else ""
        yield LocalModel(str(model.name), revision, model.path, model.size_bytes, model.is_whole)
