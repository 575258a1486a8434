"""Speculative wire: encodes the draft method and the draft model for a worker."""

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.speculative_config import read_speculative_config
from tetrad.v1 import worker_pb2


def encode_speculative(settings: EngineCoreSettings) -> worker_pb2.SpeculativeConfig | None:
    """Return method, limit and model of the drafts that the worker proposes; None: it proposes none."""
    config = read_speculative_config(settings.speculative_config)
    if config is None or not config.is_on_worker:
        return None
    return worker_pb2.SpeculativeConfig(
        method=config.method, num_speculative_tokens=config.num_speculative_tokens, model=config.model or ""
    )
