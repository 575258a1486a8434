"""Encoder answers on a device: launched after a step's hidden states, read on the thread that waits for the step."""

import numpy as np

from tetrad.worker_svc.core.result import ModelRunnerOutput
from tetrad.worker_svc.cuda.device.accelerator import Accelerator, Download
from tetrad.worker_svc.cuda.pending import LaunchLog
from tetrad.worker_svc.layers.pooler import LaunchedAnswers, Pooler
from tetrad.worker_svc.runner.encoder_runner import ComputedPrompts
from tetrad.worker_svc.runner.pooling_rows import checked_answers


class DeviceAnswers:
    """Launches the answers of each step of one runner; see EncoderRunner.

    Args:
        accelerator: the device with the hidden states.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator, self._log = accelerator, LaunchLog()

    def __call__(self, pooler: Pooler, step: ComputedPrompts) -> "LaunchedEncoderStep":
        """Launch the answers of a step, and return the launched step."""
        answers = pooler.launch(step.prompts)
        return LaunchedEncoderStep(step, answers, self._accelerator.download(answers.tensors), self._log)


class LaunchedEncoderStep:
    """A step on the device; see PendingStep.

    Args:
        step: the step, whose hidden states are queued.
        answers: the launched answers.
        download: the copy of the answers' tensors to the host.
        log: the log of the runner's steps.
    """

    def __init__(self, step: ComputedPrompts, answers: LaunchedAnswers, download: Download, log: LaunchLog) -> None:
        self._step, self._answers, self._download, self._log = step, answers, download, log

    def wait(self) -> ModelRunnerOutput:
        """Wait for the answers and return the step's result."""
        step, values = self._step, self._answers.read(self._download.wait())
        whole = [prompt.finish(np.array(its)) for prompt, its in zip(step.prompts, values, strict=True)]
        pooled, failures = checked_answers(zip(step.handles, whole, strict=True))
        return step.result(pooled, failures, self._log.note_done(step.started))
