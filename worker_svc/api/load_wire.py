"""Wire of loads: decodes the options of a model that is to be loaded, and encodes the description of a loaded one."""

from typing import Any

from tetrad.services.errors import InvalidRequest, Unsupported
from tetrad.v1 import worker_pb2
from tetrad.worker_svc.api.lora_wire import decode_limits
from tetrad.worker_svc.api.media_wire import encode_modalities
from tetrad.worker_svc.api.pooling_wire import encode_pooling_facts
from tetrad.worker_svc.api.weights_wire import decode_weights
from tetrad.worker_svc.core.device import DRAFT_METHODS, ModelInfo
from tetrad.worker_svc.core.sampler_options import LogprobsMode


def encode_model_info(info: ModelInfo, weights: worker_pb2.WeightSource | None) -> worker_pb2.ModelInfo:
    """Return the message that describes a loaded model; `weights` is the update that its weights are from, if any."""
    fields = {name: getattr(info, name) for name in ModelInfo.__dataclass_fields__ if name not in ("pooling", "modalities")}
    return worker_pb2.ModelInfo(
        **fields,
        modalities=encode_modalities(info),
        pooling=encode_pooling_facts(info.pooling) if info.pooling else None,
        weights=weights,
        weight_version="" if weights is None else weights.version,
    )


def decode_options(request: worker_pb2.LoadModelRequest) -> dict[str, Any]:
    """Return the arguments of Worker.load_model besides the model's name."""
    return {
        "dtype": request.dtype or "auto",
        "quantization": request.quantization,
        "hf_overrides_json": request.hf_overrides_json,
        "random_weights": request.random_weights,
        "seed": request.seed,
        "loras": decode_limits(request.lora_limits) if request.HasField("lora_limits") else None,
        "runner": request.runner or "auto",
        "convert": request.convert or "auto",
        "pooler_config_json": request.pooler_config_json,
        "draft_method": decode_draft_method(request.speculative) if request.HasField("speculative") else "",
        "draft_model": request.speculative.model,
        "num_draft_tokens": request.speculative.num_speculative_tokens,
        "expert_parallel": request.enable_expert_parallel,
        "weights": decode_weights(request),
        "logprobs_mode": decode_logprobs_mode(request.logprobs_mode),
    }


def decode_logprobs_mode(name: str) -> LogprobsMode:
    """Return the mode of this name. Raises Unsupported for an unknown one."""
    if name and name not in set(LogprobsMode):
        raise Unsupported(f"logprobs_mode {name[:80]!r} is not supported; use one of {', '.join(LogprobsMode)}.")
    return LogprobsMode(name or LogprobsMode.RAW_LOGPROBS)


def decode_draft_method(speculative: worker_pb2.SpeculativeConfig) -> str:
    """Return the draft method.

    Raises Unsupported for an unknown method, InvalidRequest if a model is missing or superfluous.
    """
    method, needs_model = speculative.method, speculative.method != "mtp"
    if method not in DRAFT_METHODS:
        raise Unsupported(f"speculative.method {method!r} is not supported; use one of {', '.join(DRAFT_METHODS)}.")
    if bool(speculative.model) != needs_model:
        raise InvalidRequest(f"speculative.method {method!r} {'needs a' if needs_model else 'takes no'} model.")
    return method
