"""Resolves names for tests: a process whose PYTHONPATH has this folder looks them up in the file that $HOSTS_OF_TESTS names.

Lines of the file are "address name", as in /etc/hosts; it may change at any time. Nothing in Tetrad knows of it.
"""

import os
import socket
from pathlib import Path

_system = socket.getaddrinfo
_hosts = Path(os.environ["HOSTS_OF_TESTS"])


def _getaddrinfo(host: str, *args: object, **kwargs: object) -> list[object]:
    found = [address for address, name in map(str.split, _hosts.read_text().splitlines()) if name == host]
    return [each for address in found or [host] for each in _system(address, *args, **kwargs)]


socket.getaddrinfo = _getaddrinfo
