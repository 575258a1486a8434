"""Weights file: keeps the last update of the weights for the time when the engine core and all workers have ended.

The workers keep it, too, so the file is read only if the leader has none. One engine core writes the file. Knows no workers.
"""

import json
from pathlib import Path
from typing import Protocol

from tetrad.engine_core_svc.worker.group import NewWeights
from tetrad.services.log import get_logger

log = get_logger()


class KeptUpdate(Protocol):
    """The place of the last finished update."""

    def load(self, num_ranks: int) -> tuple[NewWeights, str] | None:
        """Return the update and the name of its weights; None: there is none for this model and number of ranks."""

    def save(self, update: NewWeights, version: str) -> None:
        """Replace the update; a failure is logged only."""


class NotKept:
    """Keeps nothing: after the end of all processes the model's own weights are loaded."""

    def load(self, num_ranks: int) -> tuple[NewWeights, str] | None:  # noqa: ARG002 - as in WeightsFile
        """Return None."""
        return None

    def save(self, update: NewWeights, version: str) -> None:
        """Do nothing."""


class WeightsFile:
    """A KeptUpdate in a JSON file.

    Args:
        path: the file; its directory exists.
        model: name of the model that is served; an update of another model is not returned.
    """

    def __init__(self, path: Path, model: str) -> None:
        self._path, self._model = path, model

    def load(self, num_ranks: int) -> tuple[NewWeights, str] | None:
        """See KeptUpdate."""
        try:
            found = json.loads(self._path.read_text())
            digests = tuple(map(str, found["files_digests"]))
            update, version = NewWeights(str(found["path"]), str(found["update_id"]), digests), str(found["version"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("weights.file_unreadable", path=str(self._path), error=str(error))
            return None
        return (update, version) if found.get("model") == self._model and len(digests) == num_ranks else None

    def save(self, update: NewWeights, version: str) -> None:
        """See KeptUpdate."""
        fields = {"path": update.path, "update_id": update.update_id, "files_digests": update.files_digests}
        new = self._path.with_name(f".{self._path.name}.new")
        try:
            new.write_text(json.dumps({"model": self._model, "version": version, **fields}))
            new.replace(self._path)
        except OSError as error:
            log.warning("weights.not_kept", path=str(self._path), error=str(error))
