"""Reader: finds and unpacks the matrices of one format of quantization."""

from typing import Protocol

import torch

from tetrad.worker_svc.packed_weights.files import StoredTensors
from tetrad.worker_svc.packed_weights.grouped import GroupedMatrix
from tetrad.worker_svc.packed_weights.mxfp4 import Mxfp4Stack

Packed = GroupedMatrix | Mxfp4Stack | torch.Tensor
"""A matrix in groups; those of all experts; or in float32 [R, C], of formats whose values or columns do not lie in groups."""


class Reader(Protocol):
    """Stateless but for what the config says."""

    def reads(self, files: StoredTensors, name: str) -> bool:
        """Return whether the matrix of a prefix (without ".weight") is kept in this format."""

    def read(self, files: StoredTensors, name: str) -> Packed:
        """Return the matrix; ModelError if its tensors contradict each other."""
