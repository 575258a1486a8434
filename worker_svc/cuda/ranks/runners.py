"""Rank runners: the leader sends each plan to the members, and every rank runs it.

The products of a step exchange partial results, so the ranks of a stage run a step at the same time. Sums and gathered logits
have the same bits on all of them, and so have the sampled tokens and the drafts; only the leader returns them. Of a pipeline,
the leader's stage samples, and sends the tokens to the others (stages.py).
"""

from collections.abc import Callable, Iterable
from typing import NoReturn, Protocol

from tetrad.services.errors import InternalError
from tetrad.worker_svc.core.plan import ExecutedStep, Runner, SchedulerOutput
from tetrad.worker_svc.cuda.ranks.orders import PlanOrder, encode_order
from tetrad.worker_svc.runner.rank_channels import RankChannels


class PlanRunner(Runner, Protocol):
    """A Runner of one rank's part of a model, alone or with a drafter."""

    def take_failed(self) -> tuple[int, ...]:
        """See CudaModelRunner."""

    def execute(self, plan: SchedulerOutput, failed: Iterable[int] | None = None) -> ExecutedStep:
        """See CudaModelRunner."""


class PlanLeader:
    """The Runner of rank 0; see Runner.

    Args:
        runner: runs this rank's part.
        ranks: the connections to the members.
    """

    def __init__(self, runner: PlanRunner, ranks: RankChannels) -> None:
        self._runner, self._ranks, self._is_first = runner, ranks, True

    @property
    def num_requests(self) -> int:
        """The number of known requests."""
        return self._runner.num_requests

    def execute(self, plan: SchedulerOutput) -> ExecutedStep:
        """Send the plan to the members, and queue this rank's part of the step."""
        failed = self._runner.take_failed()
        self._ranks.send_order(encode_order(PlanOrder(plan, failed, self._is_first)))
        self._is_first = False
        return self._runner.execute(plan, failed)

    def forget_all(self) -> None:
        """Remove every request; the next order tells the members."""
        self._is_first = True
        self._runner.forget_all()

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run dummy steps; every rank's worker calls this at the same time."""
        self._runner.warm_up(report)


class PlanMember:
    """The Runner of another rank, which executes orders instead of plans; see Runner.

    Args:
        runner: runs this rank's part.
    """

    def __init__(self, runner: PlanRunner) -> None:
        self._runner = runner

    @property
    def num_requests(self) -> int:
        """The number of known requests."""
        return self._runner.num_requests

    def execute(self, plan: SchedulerOutput) -> NoReturn:
        """Raise InternalError: only the leader takes plans."""
        raise InternalError(f"Step {plan.step_id} came to a member of a worker group; its leader takes plans.")

    def obey(self, order: PlanOrder) -> None:
        """Queue this rank's part of a step; the leader alone reads its results."""
        if order.is_first:
            self._runner.forget_all()
        self._runner.execute(order.plan, order.failed)

    def forget_all(self) -> None:
        """Do nothing: the leader's next order tells when to forget."""

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run dummy steps; every rank's worker calls this at the same time."""
        self._runner.warm_up(report)
