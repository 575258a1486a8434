"""Schemes: chooses the quantization scheme that reads the matrices of a model."""

from tetrad.services.errors import ModelError
from tetrad.worker_svc.model_facts.quantization import check_method, method_of
from tetrad.worker_svc.quantization.matrix import Scheme
from tetrad.worker_svc.quantization.online import ONLINE, OnlineScheme
from tetrad.worker_svc.quantization.packed import PackedScheme
from tetrad.worker_svc.quantization.plain import PlainScheme


def open_scheme(config_quantization: object, requested: str, plain: PlainScheme) -> Scheme:
    """Return the scheme for a quantized checkpoint, or for the requested quantization of a float checkpoint.

    Args:
        config_quantization: `quantization_config` of config.json; None: a float checkpoint.
        requested: LoadRequest.quantization; for a quantized checkpoint, "" or its own method.
        plain: reads matrices that are not quantized.

    Raises:
        ModelError: one of them is not supported, or they contradict each other.
    """
    if config_quantization is None:
        return _online(requested, plain)
    check_method(config_quantization)
    method = method_of(config_quantization)
    if requested not in ("", method):
        raise ModelError(f"Quantization {requested[:80]!r} cannot be had of a model that is quantized as {method} already.")
    return PackedScheme(plain)


def _online(requested: str, plain: PlainScheme) -> Scheme:
    if not requested:
        return plain
    if requested not in ONLINE:
        known = ", ".join(sorted(ONLINE))
        raise ModelError(f"Quantization {requested[:80]!r} is not supported for weights in floats; supported: {known}.")
    return OnlineScheme(plain, requested)
