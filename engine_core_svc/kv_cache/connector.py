"""KVConnector: the engine core's interface to further stores of KV blocks, and to observers of the block pool.

The second tier in host memory (host_tier.py) and the log of KV events (event_log.py) are connectors; ConnectorChain joins
several. Called while a plan is made or a result is applied: no method waits. Names are those of vLLM's KVConnectorBase_V1
where it has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tetrad.engine_core_svc.core.plan import SchedulerOutput
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.kv_cache.block_load import BlockLoad


@dataclass(frozen=True, slots=True)
class ConnectorStats:
    """Blocks that a connector has room for and holds now, and copies from and to the device since start."""

    num_blocks: int = 0
    num_used: int = 0
    num_saved: int = 0
    num_loaded: int = 0


class KVConnector:
    """A connector that holds nothing and reports nothing; others override what they need."""

    # --- what the prefix cache reports ------------------------------------------------------------------------------

    def stored(self, request: Request, first: int, end: int) -> None:
        """Blocks `first` to `end` (exclusive) of a request are cached: others find them from now on."""

    def evicted(self, key: bytes, block: int) -> bytes | None:  # noqa: ARG002 - of the interface
        """A block's content is about to be written over; return the key that is lost by that, maybe its own, if any."""
        return key

    def removed(self, key: bytes) -> None:
        """No block of the device has this content any more, or the content is wrong: forget it."""

    def cleared(self) -> None:
        """Nothing is cached any more."""

    # --- blocks that the plan being made can bring -------------------------------------------------------------------

    def has(self, key: bytes) -> bool:  # noqa: ARG002 - of the interface
        """Return whether the plan that is made next can bring this content to the device."""
        return False

    def hold(self, keys: Sequence[bytes]) -> None:
        """Keep these contents, which are here, until the plan is made."""

    def load(self, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Bring contents that are held to blocks of the device, one each."""

    def build_connector_meta(self, plan: SchedulerOutput) -> None:
        """Add to a plan what its worker is to copy; the plan is made."""

    # --- blocks from and for elsewhere, by transfers that end with a TransferEvents -----------------------------------

    @property
    def has_new_transfers(self) -> bool:
        """Whether a plan is needed to begin transfers, although no request computes anything."""
        return False

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int:  # noqa: ARG002 - of the interface
        """Return how many tokens behind these could be fetched; called whenever the request could begin, without effects."""
        return 0

    def update_state_after_alloc(self, load: BlockLoad) -> None:
        """Fetch these blocks: begin with the plan that is made next."""

    def request_finished(self, request: Request, blocks: Sequence[int]) -> bool:  # noqa: ARG002 - of the interface
        """Return whether the blocks of a request that has ended are kept until `sent` names it."""
        return False

    # --- statistics --------------------------------------------------------------------------------------------------

    def stats(self) -> ConnectorStats:
        """Return the connector's statistics."""
        return ConnectorStats()


class ConnectorChain(KVConnector):
    """Several connectors: each hears everything; contents are kept and brought by the first one that can.

    Args:
        connectors: in this order.
    """

    def __init__(self, connectors: Sequence[KVConnector]) -> None:
        self._connectors = connectors

    def stored(self, request: Request, first: int, end: int) -> None:
        """Report to all."""
        for each in self._connectors:
            each.stored(request, first, end)

    def evicted(self, key: bytes, block: int) -> bytes | None:
        """Offer it to one after the other."""
        for each in self._connectors:
            lost = each.evicted(key, block)
            if lost != key:
                return lost
        return key

    def removed(self, key: bytes) -> None:
        """Report to all."""
        for each in self._connectors:
            each.removed(key)

    def cleared(self) -> None:
        """Report to all."""
        for each in self._connectors:
            each.cleared()

    def has(self, key: bytes) -> bool:
        """Ask one after the other."""
        return any(each.has(key) for each in self._connectors)

    def hold(self, keys: Sequence[bytes]) -> None:
        """Let each hold what it has."""
        for each in self._connectors:
            each.hold([key for key in keys if self._holder(key) is each])

    def load(self, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
        """Let each bring what it has."""
        for each in self._connectors:
            mine = [(key, block) for key, block in zip(keys, blocks, strict=True) if self._holder(key) is each]
            each.load([key for key, _ in mine], [block for _, block in mine])

    def build_connector_meta(self, plan: SchedulerOutput) -> None:
        """Let each add its part."""
        for each in self._connectors:
            each.build_connector_meta(plan)

    @property
    def has_new_transfers(self) -> bool:
        """Return whether any has."""
        return any(each.has_new_transfers for each in self._connectors)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int:
        """Return the number of tokens of the first connector that has any."""
        found = (each.get_num_new_matched_tokens(request, num_computed_tokens) for each in self._connectors)
        return next(filter(None, found), 0)

    def update_state_after_alloc(self, load: BlockLoad) -> None:
        """Let the first one fetch them that has any."""
        num_computed_tokens = load.num_computed_tokens
        has_any = (each for each in self._connectors if each.get_num_new_matched_tokens(load.request, num_computed_tokens))
        next(has_any).update_state_after_alloc(load)

    def request_finished(self, request: Request, blocks: Sequence[int]) -> bool:
        """Keep the blocks if one keeps them; the others are not asked."""
        return any(each.request_finished(request, blocks) for each in self._connectors)

    def stats(self) -> ConnectorStats:
        """Add up all."""
        each = [connector.stats() for connector in self._connectors]
        return ConnectorStats(
            num_blocks=sum(stats.num_blocks for stats in each),
            num_used=sum(stats.num_used for stats in each),
            num_saved=sum(stats.num_saved for stats in each),
            num_loaded=sum(stats.num_loaded for stats in each),
        )

    def _holder(self, key: bytes) -> KVConnector | None:
        return next((each for each in self._connectors if each.has(key)), None)
