"""LoRA wire: decodes the limits of adapters."""

from tetrad.services.errors import InvalidRequest
from tetrad.v1 import types_pb2
from tetrad.worker_svc.core.lora import LoraLimits


def decode_limits(message: types_pb2.LoraLimits) -> LoraLimits:
    """Return the limits of adapters; raise InvalidRequest if one of them is below 1."""
    for name in ("max_loras", "max_lora_rank", "max_cpu_loras"):
        if getattr(message, name) < 1:
            raise InvalidRequest(f"lora_limits.{name} must be at least 1.", field=name)
    return LoraLimits(message.max_loras, message.max_lora_rank, message.max_cpu_loras)
