"""Checkpoints of NVIDIA's Model Optimizer: fp8 with a scale per matrix or per row, and NVFP4.

Matrices of both formats may be in one checkpoint; a matrix's format is seen in the type of its `weight`.
"""

from collections.abc import Mapping
from typing import Any

import torch

from tetrad.worker_svc.checkpoint.packed_weights.files import StoredTensors
from tetrad.worker_svc.checkpoint.packed_weights.fp8 import Fp8Reader
from tetrad.worker_svc.checkpoint.packed_weights.nvfp4 import multiplied_nvfp4
from tetrad.worker_svc.checkpoint.packed_weights.reader import Packed
from tetrad.worker_svc.model_facts.quantization import MODELOPT_ALGORITHMS, choose


class ModelOptReader:
    """The Reader of ModelOpt's checkpoints.

    Args:
        config: the quantization_config.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        choose(config, "quant_algo", MODELOPT_ALGORITHMS)
        self._fp8 = Fp8Reader()

    def reads(self, files: StoredTensors, name: str) -> bool:
        """See Reader."""
        return files.has(f"{name}.weight_scale")

    def read(self, files: StoredTensors, name: str) -> Packed:
        """See Reader."""
        if files.has(f"{name}.weight_scale_2") or files.load_stored(f"{name}.weight").dtype == torch.uint8:
            return multiplied_nvfp4(files, name)
        return self._fp8.read(files, name)
