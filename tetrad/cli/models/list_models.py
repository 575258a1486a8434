"""`tetrad list`: lists the models in the caches, and whether each runs on this machine."""

import dataclasses
import json
from dataclasses import dataclass

from tetrad.cli.models.description import describe_files, why_not_here
from tetrad.cli.models.local_models import LocalModel, local_models
from tetrad.cli.models.options import add_device, add_json
from tetrad.cli.models.texts import decimal_size, table
from tetrad.cli.options import new_parser
from tetrad.services.errors import TetradError
from tetrad.services.hub.cache import cache_directory
from tetrad.services.hub.model_files import CacheSettings

_HEADINGS = ("MODEL", "SIZE", "FAMILY", "RUNS HERE")


def run(arguments: list[str]) -> int:
    """Print a line for each model."""
    parser = new_parser(
        "list",
        "List the models in the cache of Tetrad and in that of the Hugging Face hub: size, family, and whether this machine "
        "can run them. Nothing is downloaded.",
    )
    add_device(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    rows = [_row(model, options.device) for model in local_models()]
    if options.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
        return 0
    if not rows:
        print("No model is cached. `tetrad pull MODEL` downloads one; `tetrad serve MODEL` does so by itself.")
        return 0
    print("\n".join(table([_HEADINGS, *(row.cells() for row in rows)])))
    print(f"Caches: {CacheSettings().directory() / 'models'}, {cache_directory()}")
    return 0


@dataclass(frozen=True, slots=True)
class _Row:
    """The facts of a model that --json prints. `problem`: why it does not run here; empty if no reason is known."""

    model: str
    revision: str
    path: str
    size_bytes: int
    family: str
    runs_here: bool
    problem: str

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the model's row."""
        name = f"{self.model} ({self.revision})" if self.revision else self.model
        return (name, decimal_size(self.size_bytes), self.family, "yes" if self.runs_here else f"no: {self.problem}")


def _row(model: LocalModel, device: str) -> _Row:
    family = "unknown"
    try:
        description = describe_files(model.path)
        family, problem = description.family, why_not_here(description, device)
    except TetradError as error:
        problem = error.message
    if not model.is_whole:
        problem = problem or f"Its download is incomplete: `tetrad pull {model.name}` resumes it."
    return _Row(model.name, model.revision, str(model.path), model.size_bytes, family, not problem, problem)
