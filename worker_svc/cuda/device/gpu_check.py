"""GPU check: refuses to start without a usable GPU, with a message of one line."""

import torch

from tetrad.services.errors import ModelError

LEAST_CAPABILITY = (8, 0)
"""Smallest supported compute capability: Ampere, the first with bfloat16."""


def check_gpu() -> None:
    """Raise ModelError, with a message of one line, if there is no usable GPU."""
    if torch.version.hip is not None:
        raise ModelError(
            f"The cuda device does not run on AMD GPUs: this torch, {torch.__version__}, is built for ROCm. Install one built "
            "for CUDA on a machine with an NVIDIA GPU, or use --device cpu."
        )
    if not torch.cuda.is_available():
        raise ModelError("The cuda device needs an NVIDIA GPU and a torch built for CUDA; this machine has no usable one.")
    capability = torch.cuda.get_device_capability()
    if capability < LEAST_CAPABILITY:
        raise ModelError(
            f"{torch.cuda.get_device_name()} has compute capability {capability[0]}.{capability[1]}; "
            f"the cuda device needs {LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]} or higher."
        )
