"""Launched steps: the arrays of a step that runs on the device, and its result after the device has finished.

Two threads use this module: the compute thread launches steps and removes requests, and another thread waits and reads results.
LaunchLog holds their shared data: only the reading thread finds requests with non-finite logits, and steps that were launched
meanwhile still contain them.
"""

import threading
import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from tetrad.services.errors import TetradError
from tetrad.worker_svc.core.result import ModelRunnerOutput
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.device.accelerator import Download
from tetrad.worker_svc.cuda.pooling_rows import LaunchedPooling
from tetrad.worker_svc.cuda.sampling.prompt_logprobs import LaunchedPrompts
from tetrad.worker_svc.cuda.sampling.sampler import DeviceSampled
from tetrad.worker_svc.runner.prompt_logprobs import prompt_failures
from tetrad.worker_svc.runner.prompt_scores import score_failures
from tetrad.worker_svc.runner.step_result import step_result
from tetrad.worker_svc.sampler.sampler import Sampled


class LaunchLog:
    """Numbers the launched steps, and records the requests that have failed on the device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._launched = 0
        self._last_done = 0.0
        self._failed_until: dict[int, float] = {}
        """Handle of a failed request -> the first launch in which the handle belongs to another request."""

    def note_launch(self) -> int:
        """Count a launch and return its number."""
        with self._lock:
            self._launched += 1
            return self._launched

    def take_failed(self) -> tuple[int, ...]:
        """Return the requests that have failed since the last call; called on the compute thread, before a step is launched.

        The caller sets them aside: later launches do not contain them.
        """
        with self._lock:
            failed = tuple(handle for handle, until in self._failed_until.items() if until == float("inf"))
            self._failed_until.update(dict.fromkeys(failed, self._launched + 1))
            return failed

    def are_over(self, handles: npt.NDArray[np.uint32], launch: int) -> npt.NDArray[np.bool_]:
        """Return for each of a launch's requests whether it had failed in an earlier launch."""
        with self._lock:
            self._failed_until = {handle: until for handle, until in self._failed_until.items() if until > launch}
            return np.array([handle in self._failed_until for handle in handles.tolist()], np.bool_)

    def note_failed(self, handles: Sequence[int]) -> None:
        """Record requests that have failed in the step that was just read."""
        with self._lock:
            self._failed_until.update(dict.fromkeys(handles, float("inf")))

    def note_done(self, started: float) -> float:
        """Return the seconds since the later of `started` and the last step's end: the step's time on the device."""
        with self._lock:
            now = time.perf_counter()
            seconds = now - max(started, self._last_done)
            self._last_done = now
            return seconds


class LaunchedSamples(Protocol):
    """The samples of a launched step."""

    @property
    def handles(self) -> npt.NDArray[np.uint32]:
        """The requests of the sampled rows; a request with drafts has several rows."""

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """The tensors that have to be copied to the host for `read`."""

    def read(self, arrays: list[np.ndarray]) -> tuple[npt.NDArray[np.uint32], Sampled]:
        """Return handles and samples, row by row, from the copies of `tensors`; safe on any thread."""


class PlainSamples:
    """Samples of one token for each request; see LaunchedSamples.

    Args:
        handles: [R], the handles of the requests.
        sampled: the samples of their rows.
    """

    def __init__(self, handles: npt.NDArray[np.uint32], sampled: DeviceSampled) -> None:
        self.handles, self._sampled, self.tensors = handles, sampled, sampled.tensors

    def read(self, arrays: list[np.ndarray]) -> tuple[npt.NDArray[np.uint32], Sampled]:
        """Return the handles and samples of all rows."""
        return self.handles, self._sampled.read(arrays)


class LaunchedStep:
    """A step on the device; see PendingStep.

    Args:
        step_id: the plan's step id.
        launch: the number of the launch, see LaunchLog.
        rows: the rows of the step, as they were before it.
        samples, prompts, pooling: the launched outputs; `download` copies their tensors, in this order.
        has_drafts: whether a request may have several tokens.
        failures: the requests that could not run, with their errors.
        log: the log that the steps of a runner share.
        started: time when the compute thread began the step, in seconds, from `time.perf_counter`.
        input_seconds: duration of building the step's inputs.

    Attributes:
        rows: as above.
    """

    def __init__(
        self,
        *,
        step_id: int,
        launch: int,
        rows: StepRows,
        samples: LaunchedSamples,
        has_drafts: bool,
        prompts: LaunchedPrompts,
        pooling: LaunchedPooling,
        download: Download,
        failures: Sequence[tuple[int, TetradError]],
        log: LaunchLog,
        started: float,
        input_seconds: float,
    ) -> None:
        self._step_id, self._launch, self.rows, self._has_drafts = step_id, launch, rows, has_drafts
        self._samples, self._prompts, self._pooling, self._download = samples, prompts, pooling, download
        self._failures, self._log = failures, log
        self._started, self._input_seconds = started, input_seconds

    @property
    def handles(self) -> npt.NDArray[np.uint32]:
        """The requests that sample in this step; see LaunchedSamples."""
        return self._samples.handles

    def wait(self) -> ModelRunnerOutput:
        """Wait for the step and return its output."""
        arrays = self._download.wait()
        num_sampled, num_pooled = len(self._samples.tensors), len(self._pooling.tensors)
        handles, sampled = self._samples.read(arrays[:num_sampled])
        are_over = self._log.are_over(handles, self._launch)
        prompt_logprobs, prompt_scores = self._prompts.read(arrays[num_sampled : len(arrays) - num_pooled])
        pooled, pooling_failures = self._pooling.read(arrays[len(arrays) - num_pooled :])
        failures = dict([*prompt_failures(prompt_logprobs), *score_failures(prompt_scores), *pooling_failures])
        failures.update((int(handles[row]), error) for row, error in sampled.failures)
        for handle in handles[are_over].tolist():
            failures.pop(handle, None)
        self._log.note_failed(list(failures))
        return step_result(
            self._step_id,
            handles,
            sampled,
            skipped=np.flatnonzero(are_over),
            prompt_logprobs=prompt_logprobs,
            prompt_scores=prompt_scores,
            pooled=pooled,
            failures=[*self._failures, *failures.items()],
            compute_seconds=self._log.note_done(self._started),
            input_seconds=self._input_seconds,
            has_drafts=self._has_drafts,
        )
