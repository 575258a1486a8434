"""Formats: chooses the reader that unpacks a checkpoint's matrices."""

from collections.abc import Callable, Mapping
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.packed_weights.awq import AwqReader
from tetrad.worker_svc.checkpoint.packed_weights.bitsandbytes import BitsAndBytesReader
from tetrad.worker_svc.checkpoint.packed_weights.compressed_tensors import CompressedTensorsReader
from tetrad.worker_svc.checkpoint.packed_weights.fp8 import open_fp8
from tetrad.worker_svc.checkpoint.packed_weights.gptq import GptqReader
from tetrad.worker_svc.checkpoint.packed_weights.modelopt import ModelOptReader
from tetrad.worker_svc.checkpoint.packed_weights.mxfp4 import Mxfp4Reader
from tetrad.worker_svc.checkpoint.packed_weights.reader import Reader
from tetrad.worker_svc.model_facts.quantization import check_method, method_of

_READERS: Mapping[str, Callable[[Mapping[str, Any]], Reader]] = {
    "awq": AwqReader,
    "bitsandbytes": BitsAndBytesReader,
    "compressed-tensors": CompressedTensorsReader,
    "fbgemm_fp8": open_fp8,
    "fp8": open_fp8,
    "gptq": GptqReader,
    "modelopt": ModelOptReader,
    "mxfp4": Mxfp4Reader,
}


def open_reader(config_quantization: object) -> Reader:
    """Return the reader for the `quantization_config` of config.json; raise ModelError if it is not supported."""
    check_method(config_quantization)
    if not isinstance(config_quantization, Mapping):
        raise ModelError(f"quantization_config is {str(config_quantization)[:80]!r}, not an object.")
    return _READERS[method_of(config_quantization)](config_quantization)
