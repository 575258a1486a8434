"""Queued steps: waits for steps on the device, and makes the errors of steps that cannot be executed."""

from tetrad.services.errors import FailedPrecondition, InternalError, Unavailable
from tetrad.services.log import get_logger
from tetrad.worker_svc.core.ranks import EXPERTS_LOST, RankLost
from tetrad.worker_svc.core.result import ModelRunnerOutput, PendingStep

log = get_logger()


def finish(step_id: int, step: PendingStep) -> ModelRunnerOutput:
    """Wait for a queued step and return its output, on a thread that may block.

    Raises InternalError, reason STEP_FAILED, if the device failed.
    """
    try:
        return step.wait()
    except Exception as error:
        raise step_failed(step_id, error) from error


def step_failed(step_id: int, error: Exception, *, shares_experts: bool = False) -> InternalError:
    """Log an error of the device, or the loss of a rank or of another engine's worker, and return the step's error.

    Args:
        step_id: id of the step.
        error: the error.
        shares_experts: whether workers of other engines have experts of the model: a rank leaves its group if it loses one of
            them in a step, and the leader does not see why.
    """
    is_expected = isinstance(error, RankLost | ConnectionError | Unavailable)
    log.error("step.failed", step_id=step_id, error=str(error), exc_info=None if is_expected else error)
    is_elsewhere = isinstance(error, Unavailable) and error.reason == EXPERTS_LOST
    is_elsewhere |= shares_experts and isinstance(error, RankLost)
    return InternalError(
        f"Step {step_id} failed on the device: {error}", reason=EXPERTS_LOST if is_elsewhere else "STEP_FAILED"
    )


def stale_epoch() -> FailedPrecondition:
    """Return the error for an engine core whose worker another engine core uses now."""
    return FailedPrecondition("Another engine core has taken this worker over; a worker serves one.", reason="STALE_EPOCH")
