"""Group stream: combines the Execute streams of a worker group's ranks to one PlanStream.

Plans and media are sent to the leader, rank 0, which makes the members compute and returns the results. The members' streams
carry neither: they are open to detect a member that ends or hangs, which is the loss of the group.
"""

import asyncio
from collections.abc import Callable, Sequence

from tetrad.engine_core_svc.core.media import EncoderEvents, EncoderInput, MediaSpan
from tetrad.engine_core_svc.core.plan import ModelRunnerOutput, SchedulerOutput, TransferEvents
from tetrad.engine_core_svc.worker.executor import Executor
from tetrad.engine_core_svc.worker.group import Loss
from tetrad.engine_core_svc.worker.together import together


class GroupStream:
    """A PlanStream to several ranks.

    Args:
        make: one function per rank, which makes the rank's executor from the function to call on a change.
        on_change: called on the event loop when a result has arrived or a stream is lost.
    """

    def __init__(self, make: Sequence[Callable[[Callable[[], None]], Executor]], on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._executors = [each(self._note_change) for each in make]
        self._leader = self._executors[0]
        self.lost: Loss | None = None
        self.instance_id = ""
        self.shares_params = self.verifies_drafts = False

    async def start(self) -> None:
        """Open the streams of all ranks. If one fails, close all and raise its error."""
        try:
            await together(*(executor.start() for executor in self._executors))
        except BaseException:
            await self.close()
            raise
        self.instance_id = " ".join(executor.instance_id for executor in self._executors)
        self.shares_params, self.verifies_drafts = self._leader.shares_params, self._leader.verifies_drafts

    @property
    def has_room(self) -> bool:
        """See PlanStream."""
        return self.lost is None and self._leader.has_room

    @property
    def num_in_flight(self) -> int:
        """See PlanStream."""
        return self._leader.num_in_flight

    def dispatch(self, plan: SchedulerOutput) -> None:
        """Send a plan to the leader."""
        self._leader.dispatch(plan)

    def take_results(self) -> list[ModelRunnerOutput]:
        """Return the leader's results."""
        return self._leader.take_results()

    def encode(self, items: Sequence[tuple[MediaSpan, EncoderInput]]) -> None:
        """Let the leader encode media items; it makes the members have them, too."""
        self._leader.encode(items)

    def take_encoder_events(self) -> EncoderEvents | None:
        """Return the leader's events."""
        return self._leader.take_encoder_events()

    def take_transfer_events(self) -> list[TransferEvents]:
        """Return the leader's events."""
        return self._leader.take_transfer_events()

    async def close(self) -> None:
        """End every stream."""
        await asyncio.gather(*(executor.close() for executor in self._executors))

    def _note_change(self) -> None:
        found = (executor.lost for executor in self._executors)
        self.lost = self.lost or next((loss for loss in found if loss is not None), None)
        self._on_change()
