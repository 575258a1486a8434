"""Engine arguments of vLLM before 0.32 that Tetrad does not use, or that have another name in 0.32.

The base class of EngineArgs; derived from ForeignEngineArguments.
"""

from dataclasses import dataclass
from typing import Any

from tetrad.drop_in.engine_arguments import ForeignEngineArguments
from tetrad.services.verdicts import argument, ignored, refused, renamed

_MACHINERY = "It tunes machinery of older versions of vLLM; answers are the same."
_ADAPTERS = "Adapters are not supported."
_DRAFTS = "`speculative_config` has the options of speculative decoding."
_BACKEND = "One backend, llguidance, has all kinds of constraints."
_OVERRIDES = "`hf_overrides` changes a model's config."
_LOGS = "`log_level` says what is logged; a request is one line at info."

ALIASES = {
    "chunked_prefill_enabled": "enable_chunked_prefill",
    "override_pooler_config": "pooler_config",
    "kv_offloading_size": "swap_space",
}
"""Other name of an argument in vLLM -> name of the argument here."""
IN_BYTES = {"kv_cache_memory_bytes": "kv_cache_memory_gib", "kv_cache_memory": "kv_cache_memory_gib"}
"""vLLM's argument in bytes -> the argument here, in GiB."""


@dataclass
class OlderEngineArguments(ForeignEngineArguments):
    """Arguments of older versions that Tetrad does not use; `EngineArgs` checks them."""

    task: Any = argument(
        refused(
            "auto",
            "`runner` and `convert` say what a model is run for; embed stands for runner='pooling'.",
            "generate",
            "embed",
            "classify",
            "score",
            None,
        )
    )
    override_pooler_config: Any = argument(renamed("It is `pooler_config` now."))
    override_neuron_config: Any = argument(refused(None, "There is no such device."))
    rope_scaling: Any = argument(refused(None, _OVERRIDES))
    rope_theta: Any = argument(refused(None, _OVERRIDES))
    enable_prompt_adapter: Any = argument(refused(False, _ADAPTERS))
    qlora_adapter_name_or_path: Any = argument(refused(None, _ADAPTERS))
    speculative_model: Any = argument(refused(None, _DRAFTS))
    num_speculative_tokens: Any = argument(refused(None, _DRAFTS))
    kv_cache_memory: Any = argument(renamed("It is `kv_cache_memory_gib`, in bytes."))
    max_num_partial_prefills: Any = argument(refused(1, "Use `long_prefill_token_threshold`."))
    max_long_partial_prefills: Any = argument(refused(1, "Use `long_prefill_token_threshold`."))

    guided_decoding_backend: Any = argument(ignored("auto", _BACKEND))
    guided_decoding_disable_fallback: Any = argument(ignored(False, _BACKEND))
    enable_reasoning: Any = argument(ignored(None, "`reasoning_parser` alone says how reasoning is found."))
    enable_log_requests: Any = argument(ignored(False, _LOGS))
    disable_log_requests: Any = argument(ignored(False, _LOGS))
    max_log_len: Any = argument(ignored(None, _LOGS))
    chunked_prefill_enabled: Any = argument(renamed("It is `enable_chunked_prefill` now."))

    max_seq_len_to_capture: Any = argument(ignored(8192, _MACHINERY))
    max_context_len_to_capture: Any = argument(ignored(None, _MACHINERY))
    cuda_graph_sizes: Any = argument(ignored(None, _MACHINERY))
    disable_async_output_proc: Any = argument(ignored(False, _MACHINERY))
    disable_mm_preprocessor_cache: Any = argument(ignored(False, _MACHINERY))
    disable_frontend_multiprocessing: Any = argument(ignored(False, _MACHINERY))
    enable_multiprocessing: Any = argument(ignored(False, _MACHINERY))
    full_cuda_graph: Any = argument(ignored(False, _MACHINERY))
    multi_step_stream_outputs: Any = argument(ignored(True, _MACHINERY))
    num_lookahead_slots: Any = argument(ignored(0, _MACHINERY))
    num_scheduler_steps: Any = argument(ignored(1, _MACHINERY))
    preemption_mode: Any = argument(ignored(None, _MACHINERY))
    scheduler_delay_factor: Any = argument(ignored(0.0, _MACHINERY))
    tokenizer_pool_type: Any = argument(ignored("ray", _MACHINERY))
    tokenizer_pool_extra_config: Any = argument(ignored(None, _MACHINERY))
    use_v2_block_manager: Any = argument(ignored(True, _MACHINERY))
    worker_use_ray: Any = argument(ignored(False, _MACHINERY))
    engine_use_ray: Any = argument(ignored(False, _MACHINERY))
