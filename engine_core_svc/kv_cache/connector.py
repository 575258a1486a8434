"""KVConnector: the engine core's interface to further stores of KV blocks, and to observers of the block pool.

The second tier in host memory (host_tier.py) and the log of KV events (event_log.py) are connectors; ConnectorChain joins
several. Called while a plan is made or a result is applied, so no method waits. Names are those of vLLM's KVConnectorBase_V1
where that class has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tetrad.engine_core_svc.core.plan import SchedulerOutput
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.kv_cache.block_load import BlockLoad


@dataclass(frozen=True, slots=True)
class ConnectorStats:
    """Capacity of a connector and its present use, in blocks, and blocks copied from and to the device since start."""

    num_blocks: int = 0
    num_used: int = 0
    num_saved: int = 0
    num_loaded: int = 0


class KVConnector:
    """A connector that stores nothing and reports nothing; subclasses override the methods that they need."""

    # --- reports of the prefix cache --------------------------------------------------------------------------------

    def stored(self, request: Request, first: int, end: int) -> None:
        """Note that blocks `first` to `end` (exclusive) of a request are cached: other requests find them from now on."""

    def evicted(self, key: bytes, block: int) -> bytes | None:  # noqa: ARG002 - of the interface
        """Save a block's content before it is overwritten; return the key of the content that is lost thereby, or None.

        The lost content is the block's own if the connector does not save it.
        """
        return key

    def removed(self, key: bytes) -> None:
        """Forget this content: no block of the device has it any more, or it is wrong."""

    def cleared(self) -> None:
        """Forget all contents: the prefix cache is empty."""

    # --- blocks that the plan being made can copy to the device -------------------------------------------------------

    def has(self, key: bytes) -> bool:  # noqa: ARG002 - of the interface
        """Return whether the next plan can copy this content to the device."""
        return False

    def hold(self, keys: Sequence[bytes]) -> None:
        """Keep these contents, which the connector has, until the plan is made."""

    def load(self, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Copy held contents to blocks of the device, one content to each block."""

    def build_connector_meta(self, plan: SchedulerOutput) -> None:
        """Add the copies that the worker must make to a finished plan."""

    # --- blocks from and for other engine cores, by transfers that end with a TransferEvents --------------------------

    @property
    def has_new_transfers(self) -> bool:
        """Whether a plan is needed to begin transfers, although no request computes tokens."""
        return False

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int:  # noqa: ARG002 - of the interface
        """Return how many further tokens could be fetched; called whenever the request could begin, and without effects."""
        return 0

    def update_state_after_alloc(self, load: BlockLoad) -> None:
        """Fetch these blocks, beginning with the next plan."""

    def give_up(self, load: BlockLoad) -> None:
        """End a transfer early, if that is possible: no request waits for it. A TransferEvents names it in any case."""

    def nothing_to_load(self, request: Request) -> None:
        """Note that a request, which could begin, has all tokens that could be fetched for it in the prefix cache."""

    def request_finished(self, request: Request, blocks: Sequence[int]) -> bool:  # noqa: ARG002 - of the interface
        """Return whether an ended request's blocks must be kept until TransferEvents.sent names it."""
        return False

    def blocks_read(self, key: int) -> None:
        """Note that the blocks of an ended request are not kept any more."""

    def worker_lost(self) -> None:
        """Forget all transfers and kept blocks: the worker is lost. `cleared` is called, too."""

    # --- statistics --------------------------------------------------------------------------------------------------

    def stats(self) -> ConnectorStats:
        """Return the connector's statistics."""
        return ConnectorStats()


class ConnectorChain(KVConnector):
    """Several connectors: each gets every report; the first one that can save or load a content does so.

    Args:
        connectors: the connectors, in order of preference.
    """

    def __init__(self, connectors: Sequence[KVConnector]) -> None:
        self._connectors = connectors

    def stored(self, request: Request, first: int, end: int) -> None:
        """Report it to all connectors."""
        for each in self._connectors:
            each.stored(request, first, end)

    def evicted(self, key: bytes, block: int) -> bytes | None:
        """Offer the content to one connector after the other, until one saves it."""
        for each in self._connectors:
            lost = each.evicted(key, block)
            if lost != key:
                return lost
        return key

    def removed(self, key: bytes) -> None:
        """Report it to all connectors."""
        for each in self._connectors:
            each.removed(key)

    def cleared(self) -> None:
        """Report it to all connectors."""
        for each in self._connectors:
            each.cleared()

    def has(self, key: bytes) -> bool:
        """Return whether any connector has the content."""
        return any(each.has(key) for each in self._connectors)

    def hold(self, keys: Sequence[bytes]) -> None:
        """Let each connector hold the contents that it is the first to have."""
        for each in self._connectors:
            each.hold([key for key in keys if self._holder(key) is each])

    def load(self, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Let each connector load the contents that it is the first to have."""
        for each in self._connectors:
            mine = [(key, block) for key, block in zip(keys, blocks, strict=True) if self._holder(key) is each]
            each.load([key for key, _ in mine], [block for _, block in mine])

    def build_connector_meta(self, plan: SchedulerOutput) -> None:
        """Let each connector add its part."""
        for each in self._connectors:
            each.build_connector_meta(plan)

    @property
    def has_new_transfers(self) -> bool:
        """Whether any connector has new transfers."""
        return any(each.has_new_transfers for each in self._connectors)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int:
        """Return the number of tokens of the first connector that has any."""
        found = (each.get_num_new_matched_tokens(request, num_computed_tokens) for each in self._connectors)
        return next(filter(None, found), 0)

    def update_state_after_alloc(self, load: BlockLoad) -> None:
        """Let the first connector that has any tokens fetch them."""
        num_computed_tokens = load.num_computed_tokens
        has_any = (each for each in self._connectors if each.get_num_new_matched_tokens(load.request, num_computed_tokens))
        next(has_any).update_state_after_alloc(load)

    def give_up(self, load: BlockLoad) -> None:
        """Report it to all connectors."""
        for each in self._connectors:
            each.give_up(load)

    def nothing_to_load(self, request: Request) -> None:
        """Report it to all connectors."""
        for each in self._connectors:
            each.nothing_to_load(request)

    def request_finished(self, request: Request, blocks: Sequence[int]) -> bool:
        """Return whether a connector keeps the blocks; connectors after that one are not called."""
        return any(each.request_finished(request, blocks) for each in self._connectors)

    def blocks_read(self, key: int) -> None:
        """Report it to all connectors."""
        for each in self._connectors:
            each.blocks_read(key)

    def worker_lost(self) -> None:
        """Report it to all connectors."""
        for each in self._connectors:
            each.worker_lost()

    def stats(self) -> ConnectorStats:
        """Return the sums over all connectors."""
        each = [connector.stats() for connector in self._connectors]
        return ConnectorStats(
            num_blocks=sum(stats.num_blocks for stats in each),
            num_used=sum(stats.num_used for stats in each),
            num_saved=sum(stats.num_saved for stats in each),
            num_loaded=sum(stats.num_loaded for stats in each),
        )

    def _holder(self, key: bytes) -> KVConnector | None:
        return next((each for each in self._connectors if each.has(key)), None)
