"""Schemes: chooses the quantization scheme that reads the matrices of a checkpoint."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.model_facts.quantization import CHECKPOINT_METHODS, choose
from tetrad.worker_svc.model_facts.tensor_names import CANONICAL, Stored, TensorNames
from tetrad.worker_svc.quantization.awq import AwqScheme
from tetrad.worker_svc.quantization.fp8_checkpoint import has_blocks, open_compressed_tensors, open_fp8, open_modelopt_fp8
from tetrad.worker_svc.quantization.gptq import GptqScheme
from tetrad.worker_svc.quantization.matrix import Scheme
from tetrad.worker_svc.quantization.online import ONLINE, OnlineScheme
from tetrad.worker_svc.quantization.packed import PackedScheme
from tetrad.worker_svc.quantization.plain import PlainScheme

_CHECKPOINTS: Mapping[str, Callable[[Mapping[str, Any], PlainScheme], Scheme]] = {
    "awq": AwqScheme,
    "compressed-tensors": open_compressed_tensors,
    "fbgemm_fp8": open_fp8,
    "fp8": open_fp8,
    "gptq": GptqScheme,
    "modelopt": open_modelopt_fp8,
}
"""Schemes that unpack matrices on the device."""


def unpacks_on_host(config_quantization: object, names: TensorNames = CANONICAL) -> bool:
    """Return whether the scheme of a checkpoint needs a source that unpacks matrices; see open_weights.

    Matrices that `names` transposes or scales are unpacked before that, and those that it cuts or reorders, if words or blocks
    contain several rows.
    """
    if not isinstance(config_quantization, Mapping):
        return False
    match config_quantization.get("quant_method"):
        case "mxfp4" | "bitsandbytes":
            return True
        case "compressed-tensors" if config_quantization.get("format") != "float-quantized":
            return True
        case "gptq" if config_quantization.get("bits") not in (4, 8):
            return True
        case "modelopt" if "FP8" not in str(config_quantization.get("quant_algo")):
            return True
        case "awq" | "gptq":
            return any(_changes_rows(stored) for stored in _matrices(names))
        case "fp8" | "compressed-tensors" if has_blocks(config_quantization):
            return any(_changes_rows(stored) for stored in _matrices(names))
    return any(_is_changed(stored) for stored in _matrices(names))


def _matrices(names: TensorNames) -> Iterator[Stored]:
    """Yield the places of all matrices but stacks, of which these schemes read none."""
    for stored in names.in_layer.values():
        place: Stored | None = stored
        while place is not None:
            if not place.is_stacked:
                yield place
            place = place.otherwise


def _is_changed(stored: Stored) -> bool:
    return stored.is_transposed or stored.times != 1


def _changes_rows(stored: Stored) -> bool:
    return stored.rows is not None or stored.paired is not None or _is_changed(stored)


def open_scheme(
    config_quantization: object,
    requested: str,
    plain: PlainScheme,
    names: TensorNames = CANONICAL,
    *,
    are_unpacked: bool = False,
) -> Scheme:
    """Return the scheme for a checkpoint's own quantization, or for the requested quantization of a float checkpoint.

    Args:
        config_quantization: `quantization_config` of config.json; None: a float checkpoint.
        requested: LoadRequest.quantization; for a quantized checkpoint, "" or its own method.
        plain: reads matrices that are not quantized.
        names: the tensor names of the model's family.
        are_unpacked: whether the source unpacks the matrices of every checkpoint, not only where `unpacks_on_host` is true.

    Raises:
        ModelError: one of them is not supported, or they contradict each other.
    """
    if config_quantization is None:
        return _online(requested, plain)
    if not isinstance(config_quantization, Mapping):
        raise ModelError(f"quantization_config is {str(config_quantization)[:80]!r}, not an object.")
    method = choose(config_quantization, "quant_method", CHECKPOINT_METHODS)
    if requested not in ("", method):
        raise ModelError(f"Quantization {requested[:80]!r} cannot be had of a model that is quantized as {method} already.")
    if are_unpacked or unpacks_on_host(config_quantization, names):
        return PackedScheme(plain)
    return _CHECKPOINTS[method](config_quantization, plain)


def _online(requested: str, plain: PlainScheme) -> Scheme:
    if not requested:
        return plain
    if requested not in ONLINE:
        known = ", ".join(sorted(ONLINE))
        raise ModelError(f"Quantization {requested[:80]!r} is not supported for weights in floats; supported: {known}.")
    return OnlineScheme(plain, requested)
