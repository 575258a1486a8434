"""Rank runners: the leader sends each plan to the members, and every rank runs it.

The products of a step exchange partial results, so the ranks of a stage run a step at the same time. Sums and gathered logits
have the same bits on all of them, and so have the sampled tokens and the drafts; only the leader returns them. Of a pipeline,
the leader's stage samples, and sends the tokens to the others (stages.py).
"""

from collections.abc import Callable, Iterable
from typing import NoReturn, Protocol

from tetrad.services.errors import InternalError, TetradError
from tetrad.services.log import get_logger
from tetrad.worker_svc.core.media import ModelMedia
from tetrad.worker_svc.core.plan import EncoderItem, SchedulerOutput
from tetrad.worker_svc.core.result import ExecutedStep, Runner
from tetrad.worker_svc.cuda.ranks.orders import PlanOrder, encode_order
from tetrad.worker_svc.runner.rank_channels import RankChannels

_STREAM, _BEFORE_ALL = 0, -1
"""The stream of a member's images, and the step after which they are requested: orders have the order of the leader's calls."""

log = get_logger()


class PlanRunner(Runner, Protocol):
    """A Runner of one rank's part of a model, alone or with a drafter."""

    def take_failed(self) -> tuple[int, ...]:
        """See CudaModelRunner."""

    def execute(self, plan: SchedulerOutput, failed: Iterable[int] | None = None) -> ExecutedStep:
        """See CudaModelRunner."""


class OrderSender:
    """Sends the leader's orders to the members, on the compute thread.

    Args:
        ranks: the connections to the members.
    """

    def __init__(self, ranks: RankChannels) -> None:
        self._ranks, self._is_first = ranks, True

    def begin(self) -> None:
        """Let the next order tell the members to forget all earlier requests and images."""
        self._is_first = True

    def send(
        self, *, plan: SchedulerOutput | None = None, item: EncoderItem | None = None, failed: tuple[int, ...] = ()
    ) -> None:
        """Send an order; see PlanOrder."""
        self._ranks.send_order(encode_order(PlanOrder(plan, item, failed, self._is_first)))
        self._is_first = False


class PlanLeader:
    """The Runner of rank 0; see Runner.

    Args:
        runner: runs this rank's part.
        orders: sends the plans to the members.
    """

    def __init__(self, runner: PlanRunner, orders: OrderSender) -> None:
        self._runner, self._orders = runner, orders
        orders.begin()

    @property
    def num_requests(self) -> int:
        """The number of known requests."""
        return self._runner.num_requests

    def execute(self, plan: SchedulerOutput) -> ExecutedStep:
        """Send the plan to the members, and queue this rank's part of the step."""
        failed = self._runner.take_failed()
        self._orders.send(plan=plan, failed=failed)
        return self._runner.execute(plan, failed)

    def forget_all(self) -> None:
        """Remove every request; the next order tells the members."""
        self._orders.begin()
        self._runner.forget_all()

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run dummy steps; every rank's worker calls this at the same time."""
        self._runner.warm_up(report)


class PlanMember:
    """The Runner of another rank, which executes orders instead of plans; see Runner.

    Args:
        runner: runs this rank's part.
        media: this rank's tower and encoder cache; None: the model takes only text, or this rank reads no images.
    """

    def __init__(self, runner: PlanRunner, media: ModelMedia | None = None) -> None:
        self._runner, self._media = runner, media

    @property
    def num_requests(self) -> int:
        """The number of known requests."""
        return self._runner.num_requests

    def execute(self, plan: SchedulerOutput) -> NoReturn:
        """Raise InternalError: only the leader takes plans."""
        raise InternalError(f"Step {plan.step_id} came to a member of a worker group; its leader takes plans.")

    def obey(self, order: PlanOrder) -> None:
        """Queue this rank's part of a step, whose results the leader alone reads; or encode an image."""
        if order.is_first:
            self._runner.forget_all()
            if self._media is not None:
                self._media.cache.restart(_STREAM)
        if order.plan is not None:
            if self._media is not None:
                self._media.cache.free(order.plan.freed_media, order.plan.step_id)
            self._runner.execute(order.plan, order.failed)
        elif order.item is not None and self._media is not None:
            self._encode(order.item, self._media)

    def _encode(self, item: EncoderItem, media: ModelMedia) -> None:
        try:
            media.cache.put(_STREAM, item.identifier, media.tower.encode(item), _BEFORE_ALL)
        except TetradError as error:
            # The leader answers for it: its own tower fails likewise.
            log.warning("media.failed", identifier=item.identifier, error=error.message)

    def forget_all(self) -> None:
        """Do nothing: the leader's next order tells when to forget."""

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run dummy steps; every rank's worker calls this at the same time."""
        self._runner.warm_up(report)
