"""Sets the clock of engine cores wrong: an engine core whose PYTHONPATH has this folder is $CLOCK_SKEW_S ahead.

Nothing in Tetrad knows of it.
"""

import os
import sys
import time

if "tetrad.engine_core_svc" in sys.orig_argv:
    _skew_s = int(os.environ["CLOCK_SKEW_S"])
    _time, _time_ns = time.time, time.time_ns
    time.time = lambda: _time() + _skew_s
    time.time_ns = lambda: _time_ns() + _skew_s * 10**9
