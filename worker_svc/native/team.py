"""Team: the threads of the native kernels. The thread that calls is one of them; the others sleep between calls."""

import ctypes
import weakref


class Team:
    """Threads that work through packing and steps together.

    Args:
        library: the loaded kernels.
        num_threads: the calling one included.
    """

    def __init__(self, library: ctypes.CDLL, num_threads: int) -> None:
        self.library = library
        self.num_threads = num_threads
        self.handle: int = library.tetrad_team_new(num_threads)
        weakref.finalize(self, library.tetrad_team_delete, self.handle)
