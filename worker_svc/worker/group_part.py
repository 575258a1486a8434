"""GroupPart: the part of a model that this worker computes as a rank of a group; a single worker computes the whole model.

Used by the worker, on the compute thread. Only some devices support groups.
"""

from tetrad.services.errors import Unsupported
from tetrad.worker_svc.core.device import Device, GroupDevice
from tetrad.worker_svc.core.ranks import GroupPlace, Orders, Shard, Stage


class GroupPart:
    """The shard and the stage of one worker.

    Args:
        device: the worker's device.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._shard, self._stage = Shard(0, 1), Stage()

    @property
    def is_whole(self) -> bool:
        """Whether this worker computes the whole model."""
        return self._shard.size == self._stage.size == 1

    @property
    def is_leader(self) -> bool:
        """Whether this worker is the first rank of its group, or has none."""
        return self._shard.index == self._stage.index == 0

    def is_left_for(self, place: GroupPlace) -> bool:
        """Return whether a place has another part of the model. Raises Unsupported if the device supports no groups."""
        if not isinstance(self._device, GroupDevice) and place.size > 1:
            raise Unsupported(
                f"{place.option}: the {self._device.name} device computes a model on one worker; use the cpu or cuda device."
            )
        return (place.shard, place.stage) != (self._shard, self._stage)

    def loses_runner(self, place: GroupPlace) -> bool:
        """Return whether the device has to make its runner again to join a group."""
        return isinstance(self._device, GroupDevice) and place.size > 1 and not self._device.keeps_runners

    def join(self, place: GroupPlace) -> Orders | None:
        """Connect to the other ranks; return the leader's orders on a member, otherwise None. See Worker.join_group."""
        if not isinstance(self._device, GroupDevice):
            return None
        self._shard, self._stage = place.shard, place.stage
        return self._device.join_group(place)

    def leave(self) -> None:
        """Close the connections to the other ranks: the group ends, so that no rank waits for this one."""
        if isinstance(self._device, GroupDevice):
            self._device.leave_group()
