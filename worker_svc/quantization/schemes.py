"""Schemes: which one reads a model's matrices."""

from collections.abc import Mapping
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.quantization.matrix import Scheme
from tetrad.worker_svc.quantization.plain import PlainScheme


def open_scheme(config_quantization: Mapping[str, Any] | None, requested: str, plain: PlainScheme) -> Scheme:
    """Return the scheme for a checkpoint's own quantization, or for what is requested of one in floats.

    Args:
        config_quantization: `quantization_config` of config.json; None: in floats.
        requested: as of LoadRequest.quantization.
        plain: for what is not quantized.
    """
    if config_quantization or requested:
        raise ModelError(f"Quantization {str(requested or config_quantization)[:80]!r} is not supported.")
    return plain
