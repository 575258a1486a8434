"""Forward passes of a model on the device, over the tokens and block tables that the device has of the requests of a batch.

A pass queues its work and waits for nothing. The runner's model and a draft model have passes of their own, over one batch.
"""

import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.interface import DeviceModel
from tetrad.worker_svc.cuda.media.given_inputs import NOTHING_GIVEN, GivenInputs
from tetrad.worker_svc.cuda.pass_inputs import InputGatherer, PassInputs
from tetrad.worker_svc.cuda.sampling.state import DeviceState
from tetrad.worker_svc.kv_cache.cache import KvCache


class ForwardPasses:
    """The forward passes of one model.

    Args:
        model: the model.
        cache: its keys and values.
        state: the requests' tokens and block tables on the device.
        batch: the requests.
        accelerator: the device.
        shifts: [S] int32, see Shifts; None: positions are places.

    Attributes:
        inputs: gathers the inputs of the passes.
    """

    def __init__(
        self,
        model: DeviceModel,
        cache: KvCache,
        state: DeviceState,
        batch: InputBatch,
        accelerator: Accelerator,
        shifts: torch.Tensor | None = None,
    ) -> None:
        self._model, self._cache = model, cache
        self.inputs = InputGatherer(model, state, batch, accelerator, shifts=shifts)

    def of_rows(self, rows: StepRows, given: GivenInputs = NOTHING_GIVEN) -> torch.Tensor:
        """Return the hidden states [T, hidden] of a step of any shape."""
        return self._run(self.inputs.of_rows(rows, given.ends), given)

    def of_inputs(self, inputs: PassInputs) -> torch.Tensor:
        """Return the hidden states [T, hidden] of a graph's inputs; some tokens may be padding."""
        return self._run(inputs)

    def _run(self, inputs: PassInputs, given: GivenInputs = NOTHING_GIVEN) -> torch.Tensor:
        return self._model.forward(
            inputs.token_ids, inputs.positions, self._cache.layers, inputs.steps, given=given.embeddings, axes=given.axes
        )
