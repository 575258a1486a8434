"""Pooling use of a model's files: determined by architecture, modules.json and the options of the load request."""

from collections.abc import Mapping
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.pooler_config import has_pooling_modules
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.families.pooling import PoolingUse, is_bidirectional, pooling_use
from tetrad.worker_svc.families.registry import FAMILIES
from tetrad.worker_svc.families.values import architecture_of


def find_use(request: LoadRequest, config: Mapping[str, Any]) -> PoolingUse | None:
    """Return the pooling use of a decoder, None if it only generates; raise ModelError for contradicting options."""
    has_modules = has_pooling_modules(request.path)
    use = pooling_use(config, FAMILIES, runner=request.runner, convert=request.convert, has_modules=has_modules)
    if is_bidirectional(config) and (use is None or use.generates):
        raise ModelError("The model's tokens see those behind them: it pools and does not generate. Start with runner pooling.")
    if use is None and request.pooler_config_json:
        raise ModelError("pooler_config is for models that pool; this one generates. Start with runner pooling.")
    return use


def check_generates(request: LoadRequest, config: Mapping[str, Any], device: str) -> None:
    """Raise ModelError for a decoder that pools, on a device whose runner does not support pooling."""
    if find_use(request, config) is not None:
        raise ModelError(
            f"Architecture {architecture_of(config)[:80]} pools, which the {device} device does not; use --device cpu or cuda, "
            "or a generator with --runner generate."
        )
