"""Team: the threads of the native kernels. The calling thread is one of them; the others sleep between calls."""

import ctypes
import weakref

from tetrad.services.errors import FailedPrecondition
from tetrad.worker_svc.native.memory import WeightMemory


class Team:
    """A team of threads that share the work of packing and of steps.

    Args:
        library: the loaded kernels.
        num_threads: number of threads, the calling one included; FailedPrecondition if the system cannot create them.

    Attributes:
        weights: memory for the weights that the team packs.
    """

    def __init__(self, library: ctypes.CDLL, num_threads: int) -> None:
        self.library = library
        self.num_threads = num_threads
        self.weights = WeightMemory()
        handle: int | None = library.tetrad_team_new(num_threads)
        if handle is None:
            raise FailedPrecondition(f"The system has no room for {num_threads} compute threads; ask for fewer.")
        self.handle = handle
        self._has_split_products = bool(library.tetrad_has_split_products())
        self._has_fixed_products = bool(library.tetrad_has_fixed_products())
        self._has_pair_products = bool(library.tetrad_has_pair_products())
        # The team is not deleted at exit: a running or hanging step would keep the process from ending.
        weakref.finalize(self, library.tetrad_team_delete, handle).atexit = False

    @property
    def has_split_products(self) -> bool:
        """Whether the processor can compute products with tiles of bfloat16."""
        return self._has_split_products

    @property
    def has_fixed_products(self) -> bool:
        """Whether products in 16-bit fixed point are faster than float products on this processor."""
        return self._has_fixed_products

    @property
    def has_pair_products(self) -> bool:
        """Whether the processor multiplies pairs of bfloat16 numbers (AVX512_BF16)."""
        return self._has_pair_products
