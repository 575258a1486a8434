"""Open files: raises the process's limit on open files at start. Each connection is one; the default of shells is low."""

import resource

# Sockets to the services, logs, stores, and those that are just being closed.
_RESERVED = 256
_LEAST = 16


def raise_open_files_limit() -> int:
    """Raise this process's limit to what it may be, and return how many connections fit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = 1 << 30 if hard == resource.RLIM_INFINITY else hard
    return max(most - _RESERVED, _LEAST)
