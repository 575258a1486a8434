"""Engine settings: names the setting of a service that each engine argument sets, and builds a service's settings.

Used by EngineArgs and by the options of `tetrad serve`.
"""

from typing import Any, TypeVar

from pydantic import ValidationError

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.frontend.config import FrontendSettings
from tetrad.services.errors import InvalidRequest
from tetrad.services.settings import ServiceSettings, Settings, first_problem
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.worker_svc.config import WorkerSettings

S = TypeVar("S", bound=Settings)

SETTING_OF: dict[str, tuple[type[ServiceSettings], str]] = {
    **{
        name: (EngineCoreSettings, name)
        for name in (
            "dtype",
            "quantization",
            "load_format",
            "runner",
            "convert",
            "max_model_len",
            "block_size",
            "num_gpu_blocks_override",
            "gpu_memory_utilization",
            "swap_space",
            "enable_prefix_caching",
            "enable_chunked_prefill",
            "max_num_seqs",
            "max_num_batched_tokens",
            "long_prefill_token_threshold",
            "logprobs_mode",
            "per_request_spec_decode_metrics",
            "enable_logging_iteration_details",
            "kv_cache_metrics",
            "kv_cache_metrics_sample",
            "max_decode_slowdown",
            "pipeline_depth",
            "enable_expert_parallel",
            "scheduling_policy",
            "priority_order",
            "seed",
            "max_num_queued_reqs",
            "max_num_queued_tokens",
            "enable_lora",
            "max_loras",
            "max_lora_rank",
            "max_cpu_loras",
        )
    },
    "device": (WorkerSettings, "device"),
    "enforce_eager": (WorkerSettings, "enforce_eager"),
    "trust_remote_code": (WorkerSettings, "trust_remote_code"),
    "language_model_only": (WorkerSettings, "language_model_only"),
    "allow_functions": (WorkerSettings, "allow_functions"),
    "logits_processors": (WorkerSettings, "logits_processors"),
    "threads": (WorkerSettings, "threads"),
    "kv_cache_dtype": (WorkerSettings, "kv_cache_dtype"),
    "kv_cache_memory_gib": (WorkerSettings, "kv_cache_memory_gib"),
    "cpu_offload_gb": (WorkerSettings, "cpu_offload_gb"),
    "max_logprobs": (FrontendSettings, "max_logprobs"),
    "stream_interval": (FrontendSettings, "stream_interval"),
    "enable_prompt_embeds": (FrontendSettings, "enable_prompt_embeds"),
    "enable_mm_embeds": (FrontendSettings, "enable_mm_embeds"),
    "allowed_local_media_path": (FrontendSettings, "allowed_local_media_path"),
    "allowed_media_domains": (FrontendSettings, "allowed_media_domains"),
    "tool_call_parser": (FrontendSettings, "tool_call_parser"),
    "reasoning_parser": (FrontendSettings, "reasoning_parser"),
    "chat_template": (TokenizerSettings, "chat_template"),
}
"""Engine argument -> the setting of a service that it sets."""


def build_settings(cls: type[S], values: dict[str, Any]) -> S:
    """Return settings; InvalidRequest, which names the setting, if a value is wrong."""
    try:
        return cls(**values)
    except ValidationError as error:
        name, message = first_problem(cls, error)
        raise InvalidRequest(f"{name}: {message}" if name else message, field=name or None) from error
