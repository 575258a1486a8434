"""GGUF parts: the files of a model that llama.cpp has split, "name-00001-of-00003.gguf" and so on.

Called by the worker's and the tokenizer's loaders with the path that a user gave. Knows names, not contents.
"""

import re
from pathlib import Path

from tetrad.services.errors import ModelError

_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MAX_NAMED = 3


def gguf_part_paths(path: Path) -> list[Path]:
    """Return all files of the model whose first file this is; only the path itself unless its name is that of a part.

    Raises:
        ModelError: the path is not the first part, or other parts are missing beside it.
    """
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    stem, count = match["stem"], int(match["count"])
    number = int(match["number"])
    if number != 1:
        first = f"{stem}-00001-of-{count:05}.gguf"
        raise ModelError(f"{path} is part {number} of {count}; give the path of the first one, {first}.", field="model")
    paths = [path.with_name(f"{stem}-{each:05}-of-{count:05}.gguf") for each in range(1, count + 1)]
    missing = [part.name for part in paths if not part.is_file()]
    if missing or not paths:
        names = ", ".join(missing[:_MAX_NAMED]) + (
            f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        )
        raise ModelError(
            f"{path} is one of {count} parts, and {names or 'all of them'} cannot be found beside it. Fetch all parts.",
            field="model",
        )
    return paths
