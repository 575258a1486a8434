"""Towers of ranks: each rank whose layers read rows of images encodes every image itself, between steps, in the same order.

Pixels are smaller than embeddings, and a rank has the rows before any step that needs them. The leader encodes as well, also if
its layers read no rows: it answers for the images that cannot be encoded. The tower of the other ranks is not loaded.
"""

from tetrad.services.errors import InternalError
from tetrad.worker_svc.core.media import EncodedItem, Tower
from tetrad.worker_svc.core.plan import EncoderItem
from tetrad.worker_svc.cuda.ranks.runners import OrderSender


class TowerFacts:
    """The facts of a tower; see Tower.

    Args:
        tower: the tower, which this object does not keep.
    """

    has_own_thread = False

    def __init__(self, tower: Tower) -> None:
        self.is_attended = tower.is_attended
        self.modalities, self.uses_mrope, self.num_deep_layers = tower.modalities, tower.uses_mrope, tower.num_deep_layers
        self.num_parameters, self.size_bytes, self.embed_bytes = tower.num_parameters, tower.size_bytes, tower.embed_bytes


class AbsentTower(TowerFacts):
    """The tower of a rank whose layers read no rows."""

    def __init__(self, tower: Tower) -> None:
        super().__init__(tower)
        self.num_parameters = self.size_bytes = self.embed_bytes = 0

    def encode(self, item: EncoderItem) -> EncodedItem:
        """Raise InternalError: no order asks for it."""
        raise InternalError(f"Media item {item.identifier[:80]} came to a rank without a tower.")

    def activation_bytes(self, num_embeds: int) -> int:  # noqa: ARG002 - of the protocol
        """Return 0."""
        return 0


class LedTower(TowerFacts):
    """The tower of the leader, which has the members encode each item too.

    Args:
        tower: the leader's own.
        orders: sends orders to the members.
    """

    def __init__(self, tower: Tower, orders: OrderSender) -> None:
        super().__init__(tower)
        self._tower, self._orders = tower, orders
        self.activation_bytes = tower.activation_bytes

    def encode(self, item: EncoderItem) -> EncodedItem:
        """See Tower; on the compute thread."""
        self._orders.send(item=item)
        return self._tower.encode(item)
