"""ModelNames: the names under which clients may address the model."""

import time
from collections.abc import Sequence

from tetrad.services.errors import NotFound


class ModelNames:
    """The served names; the first is what responses say.

    Args:
        names: at least one.
        root: what they stand for: a path or a built-in name.
    """

    def __init__(self, names: Sequence[str], *, root: str) -> None:
        self.names = tuple(names)
        self.root = root
        self.created_unix_s = int(time.time())

    def resolve(self, name: str | None) -> str:
        """Return the name to answer with; none means the only model. NotFound for any other model."""
        if not name:
            return self.names[0]
        if name not in self.names:
            raise NotFound(f"The model `{name}` does not exist.", field="model", reason="MODEL_NOT_FOUND")
        return name
