"""The version of Tetrad and the revision of its contracts."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("tetrad")
except PackageNotFoundError:  # a checkout on sys.path that was never installed
    VERSION = "0+unknown"

SCHEMA_REVISION = 2
"""Revision that both sides of a stream must have. It is increased with a change of protos/tetrad/v1 that an older peer would
misunderstand.
"""

CONTRACT_REVISION = 3
"""Revision of the text of protos/tetrad/v1, for logs. It is increased with additions. An older peer gets none of them, since it
does not announce their capabilities.
"""
