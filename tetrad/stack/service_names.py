"""Service names: the names of a local stack's processes and sockets: "worker" is the first of its kind, "worker-2" the next.

Knows names only: `tetrad status` uses them for stacks of other processes.
"""

HEALTH_NAMES = {
    "tokenizer": "tetrad.v1.TokenizerService",
    "worker": "tetrad.v1.WorkerService",
    "engine-core": "tetrad.v1.EngineCoreService",
    "frontend": "tetrad.v1.InferenceService",
}
"""Kind of a child (see `kind_of`) -> the gRPC service whose health status shows that it accepts requests."""


def numbered(kind: str, number: int) -> str:
    """Return the name of service `number` of a kind, counted from 0: "worker", "worker-2", ..."""
    return f"{kind}-{number + 1}" if number else kind


def kind_of(name: str) -> str:
    """Return the kind of service in the name of a child or socket: "tokenizer" for "tokenizer-2"."""
    kind, _, number = name.rpartition("-")
    return kind if number.isdigit() else name


def number_of(name: str) -> int:
    """Return the number of a child among those of its kind, from 0: 1 for "tokenizer-2"."""
    kind = kind_of(name)
    return 0 if kind == name else int(name.removeprefix(f"{kind}-")) - 1
