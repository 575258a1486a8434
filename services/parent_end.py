"""Parent's end: continues a stopped process (SIGSTOP, Ctrl-Z) when its parent dies, so that it can end too.

Called by processes that end when a pipe from their parent breaks: a stopped one would not notice, and stay for ever.
"""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def continue_at_parents_end() -> None:
    """Let the system send SIGCONT when the thread that started this process ends, as it does with the parent. Linux only.

    SIGCONT rather than SIGKILL: a process that runs ignores it and ends in order, and a parent whose thread ends may live on.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
