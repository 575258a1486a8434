"""Address space: checks that the services can start under this process's limit (ulimit -v), which they inherit.

Called by the local stack before it starts a process: with a smaller limit, libraries abort without a message.
"""

import resource

from tetrad.services.errors import FailedPrecondition

LEAST_BYTES = 1200 << 20
"""Address space in bytes that a worker needs before it loads a model: libraries, and the stacks and arenas of threads."""


def check_address_space() -> None:
    """Raise FailedPrecondition, with the limit and the need, if the limit is too small for any model."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_BYTES:
        raise FailedPrecondition(
            f"The limit on address space is {limit >> 20} MiB; the worker needs {LEAST_BYTES >> 20} MiB besides model and"
            " KV cache. Raise it (ulimit -v).",
            reason="NO_MEMORY",
        )
