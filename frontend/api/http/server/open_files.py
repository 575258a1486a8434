"""Open files: raises the process's limit of open files. Each connection is an open file; the default of shells is low."""

import resource

# Number of files kept for sockets to the services, logs, stores, and connections that are being closed.
_RESERVED = 256
_LEAST = 16


def raise_open_files_limit() -> int:
    """Raise this process's limit to its maximum, and return the number of connections that it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = 1 << 30 if hard == resource.RLIM_INFINITY else hard
    return max(most - _RESERVED, _LEAST)
