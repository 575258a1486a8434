"""vLLM's small utilities, under vLLM's import path."""

import uuid

from tetrad.drop_in.command_line import FlexibleArgumentParser as FlexibleArgumentParser
from tetrad.library.request_counter import RequestCounter

Counter = RequestCounter


def random_uuid() -> str:
    """Return 32 random hexadecimal digits."""
    return uuid.uuid4().hex
