"""LoRA wire: encodes the limits of adapters, and adapters for the worker."""

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.adapter import Adapter
from tetrad.v1 import types_pb2


def encode_lora_limits(settings: EngineCoreSettings) -> types_pb2.LoraLimits | None:
    """Return the limits of adapters; None: adapters are disabled."""
    if not settings.enable_lora:
        return None
    return types_pb2.LoraLimits(
        max_loras=settings.max_loras, max_lora_rank=settings.max_lora_rank, max_cpu_loras=settings.num_cpu_loras
    )


def encode_adapter(adapter: Adapter) -> types_pb2.LoraRequest:
    """Return an adapter under the number that workers use for this version."""
    return types_pb2.LoraRequest(name=adapter.ref.name, id=adapter.key, path=adapter.ref.path)
