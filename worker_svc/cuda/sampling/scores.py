"""Scores on the device: the logits of which a step's log-probabilities are gathered; sampler/scores.py has the rules.

The sampler's logprobs mode chooses the collaborator. Nothing here waits for the device.
"""

from typing import Protocol

import torch

from tetrad.worker_svc.core.sampler_options import LogprobsMode
from tetrad.worker_svc.cuda.sampling.parameters import SamplingParameters
from tetrad.worker_svc.cuda.sampling.rows import SamplingRows
from tetrad.worker_svc.kernels.processed_logits import processed_logits


class DeviceScores(Protocol):
    """Chooses between a step's logits before and after the sampler's changes."""

    keeps_raw: bool
    """Whether the raw logits are needed after the changes."""

    def of(self, raw: torch.Tensor, changed: torch.Tensor, rows: SamplingRows, thresholds: torch.Tensor | None) -> torch.Tensor:
        """Return the logits [R, V] of which log-probabilities are gathered.

        Args:
            raw: [R, V], before any change.
            changed: [R, V], after all changes but temperature and truncation.
            rows: the step's rows.
            thresholds: [R or more], the smallest weights that can be drawn; None: all rows are greedy.
        """


def make_device_scores(mode: LogprobsMode, parameters: SamplingParameters) -> DeviceScores:
    """Return the collaborator for a mode; `parameters`: those of the sampler."""
    return ProcessedDeviceScores(parameters) if mode.is_processed else RawDeviceScores()


class RawDeviceScores:
    """The model's own logits; see DeviceScores."""

    keeps_raw = True

    def of(
        self,
        raw: torch.Tensor,
        changed: torch.Tensor,  # noqa: ARG002 - of the protocol
        rows: SamplingRows,  # noqa: ARG002
        thresholds: torch.Tensor | None,  # noqa: ARG002
    ) -> torch.Tensor:
        """See DeviceScores."""
        return raw


class ProcessedDeviceScores:
    """The logits that tokens are drawn from; see DeviceScores."""

    keeps_raw = False

    def __init__(self, parameters: SamplingParameters) -> None:
        self._parameters = parameters

    def of(
        self,
        raw: torch.Tensor,  # noqa: ARG002 - of the protocol
        changed: torch.Tensor,
        rows: SamplingRows,
        thresholds: torch.Tensor | None,
    ) -> torch.Tensor:
        """See DeviceScores."""
        if thresholds is None:
            return changed
        slots, _ = rows.on_device
        return processed_logits(changed, thresholds, slots, self._parameters.temperature)
