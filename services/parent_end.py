"""Parent's end: continues a stopped process (SIGSTOP, Ctrl-Z) when its parent ends, so that it can end too.

Called by processes that end when a pipe from their parent breaks: a stopped one would not notice that, and exist for ever.
"""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1


def continue_at_parents_end() -> None:
    """Let the system send SIGCONT when the thread that started this process ends, at the latest with the parent. Linux only.

    SIGCONT instead of SIGKILL: a running process ignores it and ends normally, and the parent may live on after its thread.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
