"""Given inputs of a step on a device: embeddings of images and of prompts, and positions on three axes."""

from typing import NamedTuple

import torch

from tetrad.worker_svc.models.decoder import GivenEmbeddings


class GivenInputs(NamedTuple):
    """Inputs of a step that are not in the device's state. No graph runs a step that has some.

    Attributes:
        embeddings: rows that replace the embeddings of token ids, or are added behind the first layers.
        axes: [3, T] int32, positions of rotary embeddings on three axes; None: they are `positions`.
        ends: [T] int32, see StepInputs; None: no token attends to a later one.
    """

    embeddings: GivenEmbeddings | None = None
    axes: torch.Tensor | None = None
    ends: torch.Tensor | None = None

    def __bool__(self) -> bool:
        return any(each is not None for each in self)


NOTHING_GIVEN = GivenInputs()
