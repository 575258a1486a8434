"""Lets the chaos tests collect the garbage of any service: SIGUSR2 runs the collector and gives free memory back.

Python imports this by its name in every process whose PYTHONPATH has this folder. Nothing in Tetrad knows of it.
"""

import ctypes
import gc
import signal


def _collect(number: int, frame: object) -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


signal.signal(signal.SIGUSR2, _collect)
