"""Host metadata: gather lists, masks and rows of states that the host builds for a step and copies to the device.

Called by the runner once per step, for models with layers that no kernel computes. The host knows all block tables and lengths;
it does not need the tokens, so it does not wait for the device. The shapes of this metadata differ between steps, so no graph
can record such steps.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from tetrad.worker_svc.attention.paged_metadata import PagedMetadata, Pages
from tetrad.worker_svc.attention.scores import Seen
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.step_inputs import StepRows, step_inputs_of
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.kv_cache.state_rows import StateRows
from tetrad.worker_svc.models.host import HostStep, HostSteps

NOTHING = HostStep({}, {})

_Upload = Callable[[torch.Tensor], torch.Tensor]


class HostMetadata:
    """Builds each step's host metadata and copies it to the device.

    Args:
        steps: builds the metadata of the model's layers; None: the layers need none.
        batch: the requests.
        accelerator: the device.
    """

    def __init__(self, steps: HostSteps | None, batch: InputBatch, accelerator: Accelerator) -> None:
        self._steps, self._batch, self._accelerator = steps, batch, accelerator

    def of(self, rows: StepRows) -> HostStep:
        """Return the metadata of a step, by KV group."""
        if self._steps is None:
            return NOTHING
        made = self._steps.build_metadata(step_inputs_of(self._batch, rows), self._batch)
        return HostStep(
            {group: _pages_on_device(pages, self._upload) for group, pages in made.pages.items()},
            {group: _states_on_device(states, self._upload) for group, states in made.states.items()},
        )

    def _upload(self, values: torch.Tensor) -> torch.Tensor:
        return self._accelerator.upload(values.numpy())


def _states_on_device(rows: StateRows, upload: _Upload) -> StateRows:
    return replace(rows, sources=upload(rows.sources), targets=upload(rows.targets), begun=upload(rows.begun))


def _pages_on_device(metadata: PagedMetadata, upload: _Upload) -> PagedMetadata:
    def pages(made: Pages) -> Pages:
        return Pages(upload(made.ids), made.first)

    def seen(made: Seen) -> Seen:
        return Seen(upload(made.mask), None if made.distances is None else upload(made.distances))

    return replace(
        metadata,
        slot_mapping=upload(metadata.slot_mapping),
        begun_pages=upload(metadata.begun_pages),
        groups=tuple(replace(group, pages=pages(group.pages), seen=seen(group.seen)) for group in metadata.groups),
        chunks=tuple(
            replace(
                chunk,
                pages=pages(chunk.pages),
                tiles=tuple(replace(tile, seen=seen(tile.seen)) for tile in chunk.tiles),
            )
            for chunk in metadata.chunks
        ),
        in_chunks=None if metadata.in_chunks is None else _pages_on_device(metadata.in_chunks, upload),
    )
