"""Runner parts: creates the parts of a CUDA runner that differ between a whole model and a stage of a pipeline.

Used by the runner's constructor alone; the runner does not know which kind it has.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.sampler_options import LogprobsMode
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.forward_passes import ForwardPasses
from tetrad.worker_svc.cuda.interface import DeviceModel
from tetrad.worker_svc.cuda.sampling.sampler import DeviceSampler
from tetrad.worker_svc.cuda.sampling.state import DeviceState
from tetrad.worker_svc.cuda.slot_loras import NoGraphLoras, SlotGraphLoras
from tetrad.worker_svc.cuda.step_passes import LaunchedPasses, RecordedPasses, StepPasses
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.sampler.custom_classes import NamedProcessor


class PassParts(NamedTuple):
    """What the passes of a runner work with: its model, keys and values, requests, adapters, and the limits of a step.

    `shifts` are [S] int32, see Shifts; None: positions are places.
    """

    model: DeviceModel
    cache: KvCache
    state: DeviceState
    batch: InputBatch
    accelerator: Accelerator
    loras: NoGraphLoras | SlotGraphLoras
    layout: KvLayout
    shifts: torch.Tensor | None = None

    def forward_passes(self) -> ForwardPasses:
        """Return the passes of a model that begins with its embeddings."""
        return ForwardPasses(self.model, self.cache, self.state, self.batch, self.accelerator, self.shifts)

    def step_passes(self, passes: ForwardPasses, *, use_graphs: bool, has_output: bool = True) -> StepPasses:
        """Return the passes of steps, recorded if they can be.

        Args:
            passes: the model's passes.
            use_graphs: whether they may be recorded.
            has_output: see RecordedPasses.
        """
        model, batch, loras, layout = self.model, self.batch, self.loras, self.layout
        if use_graphs and model.host_steps is None and model.has_kernel_attention:
            return RecordedPasses(model, passes, loras, self.accelerator, batch, layout, has_output=has_output)
        return LaunchedPasses(passes, loras)


class SamplerParts(NamedTuple):
    """What a sampler works with; see DeviceSampler."""

    accelerator: Accelerator
    state: DeviceState
    batch: InputBatch
    vocab_size: int
    processors: Sequence[NamedProcessor]
    logprobs_mode: LogprobsMode


class RunnerParts(Protocol):
    """Creates the parts of a runner."""

    def state(self, accelerator: Accelerator, batch: InputBatch) -> DeviceState:
        """Return the requests' tokens and block tables on the device."""

    def sampler(self, parts: SamplerParts) -> DeviceSampler:
        """Return what chooses the requests' tokens."""

    def passes(self, parts: PassParts, *, use_graphs: bool) -> StepPasses:
        """Return the forward passes; `use_graphs`: whether they may be recorded."""

    def bytes_in_flight(self, step_bytes: int) -> int:
        """Return the bytes of device memory for what steps in flight keep; `step_bytes`: hidden states of the largest step."""


class WholeParts:
    """Creates the parts of a runner whose model is whole, or a shard of each layer; see RunnerParts."""

    def state(self, accelerator: Accelerator, batch: InputBatch) -> DeviceState:
        """See RunnerParts."""
        return DeviceState(accelerator, batch)

    def sampler(self, parts: SamplerParts) -> DeviceSampler:
        """See RunnerParts."""
        return DeviceSampler(*parts)

    def passes(self, parts: PassParts, *, use_graphs: bool) -> StepPasses:
        """See RunnerParts."""
        return parts.step_passes(parts.forward_passes(), use_graphs=use_graphs)

    def bytes_in_flight(self, step_bytes: int) -> int:  # noqa: ARG002 - of the protocol
        """Return 0: a step leaves no hidden states."""
        return 0


WHOLE = WholeParts()
