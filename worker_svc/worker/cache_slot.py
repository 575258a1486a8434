"""Cache slot: the KV cache of a worker's model for one layout, with the runner that computes on it.

Used by worker.py, on the compute thread; properties are safe on any thread. Knows nothing of streams, loading and sleep.
"""

from collections.abc import Callable, Sequence

from tetrad.services.errors import FailedPrecondition, Unavailable
from tetrad.services.log import get_logger
from tetrad.worker_svc.core.device import KvGroup, KvLayout, LoadedModel
from tetrad.worker_svc.core.kv_transfer import BlockContents, SharesBlocks
from tetrad.worker_svc.core.layout_check import LOWER_KV_CACHE, LOWER_STEP
from tetrad.worker_svc.core.memory_shortage import memory_for
from tetrad.worker_svc.core.ranks import RankLost
from tetrad.worker_svc.core.result import Runner
from tetrad.worker_svc.kv_cache.block_exchange import BlockExchange

log = get_logger()

MemoryQuestion = tuple[float, int, int]
"""Arguments of a memory query: utilization, tokens of a step and tokens of media."""


class CacheSlot:
    """At most one KV cache.

    Args:
        give_back_memory: returns the memory of a dropped cache to the device.

    Attributes:
        runner: computes steps on the cache; None: there is no cache.
        layout: the layout of the cache; None: there is none.
        size_bytes: size of the cache; 0: there is none.
        num_groups: number of its KV groups.
        is_warm: whether the dummy steps have run.
        contents: the content of the blocks, for transfers; None: it cannot be read, or other ranks have parts of it.
        exchange: the blocks that move to and from other workers.
        fingerprint: see checkpoint/fingerprint.py; empty: there was no cache yet.
    """

    def __init__(self, give_back_memory: Callable[[], None]) -> None:
        self._give_back_memory = give_back_memory
        self.runner: Runner | None = None
        self.layout: KvLayout | None = None
        self.size_bytes = 0
        self.num_groups = 1
        self.is_warm = False
        self.contents: BlockContents | None = None
        self.exchange = BlockExchange()
        self.fingerprint = b""
        self._measured: tuple[MemoryQuestion, int] | None = None

    def ready_runner(self) -> Runner:
        """Return the runner; raise FailedPrecondition if there is none."""
        if self.runner is None:
            raise FailedPrecondition("There is no KV cache; call LoadModel and InitializeKvCache first.", reason="NOT_READY")
        return self.runner

    @property
    def num_requests(self) -> int:
        """The number of requests that the runner knows."""
        runner = self.runner
        return runner.num_requests if runner else 0

    def has(self, layout: KvLayout) -> bool:
        """Return whether there is a cache of this layout."""
        return self.runner is not None and layout == self.layout

    def allocate(self, model: LoadedModel, layout: KvLayout, groups: Sequence[KvGroup], *, is_whole: bool) -> None:
        """Allocate a cache in the empty slot.

        Args:
            model: the loaded model.
            layout: see LoadedModel.make_runner.
            groups: the model's groups, with blocks of the layout's size.
            is_whole: whether no other rank has a part of the model.

        Raises FailedPrecondition if memory is too small.
        """
        size_bytes = layout.num_blocks * block_bytes(groups)
        with memory_for("The KV cache", size_bytes, LOWER_KV_CACHE):
            runner = self.runner = model.make_runner(layout)
        self.contents = runner.block_contents if is_whole and isinstance(runner, SharesBlocks) else None
        self.layout, self.size_bytes, self.num_groups = layout, size_bytes, len(groups)
        log.info("kv_cache.allocated", num_blocks=layout.num_blocks, block_size=layout.block_size)

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run dummy steps, unless they have run. Raises Unavailable if another rank is lost."""
        runner = self.ready_runner()
        if self.is_warm:
            return
        runner.forget_all()
        try:
            with memory_for("A step", None, LOWER_STEP):
                runner.warm_up(report)
        except RankLost as error:
            raise Unavailable(str(error)) from error
        self.is_warm = True

    def drop(self) -> None:
        """Free the cache."""
        had_runner = self.runner is not None
        self.runner, self.layout, self.contents, self.is_warm, self.size_bytes = None, None, None, False, 0
        if had_runner:
            self._give_back_memory()

    def memory_before(self, question: MemoryQuestion) -> int | None:
        """Return the last answer to a memory query, before this cache was allocated; None: another one was asked."""
        return self._measured[1] if self.runner is not None and self._measured and self._measured[0] == question else None

    def note_memory(self, question: MemoryQuestion, answer: int) -> None:
        """Keep the answer to a memory query."""
        self._measured = question, answer


def block_bytes(groups: Sequence[KvGroup]) -> int:
    """Return the bytes of a block; 0: the model keeps no keys and values."""
    return groups[0].block_size_bytes if groups else 0
