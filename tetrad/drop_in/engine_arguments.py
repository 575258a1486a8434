"""EngineArgs of vLLM 0.32 that Tetrad does not use: accepts or refuses each, with the reason.

The base of EngineArgs, so that programs made for vLLM can pass them. older_engine_arguments.py has those of older versions.
"""

from dataclasses import dataclass
from typing import Any

from tetrad.services.verdicts import argument, ignored, refused, renamed, verdicts_of

_ONE_DEVICE = (
    "`tensor_parallel_size` and `pipeline_parallel_size` split a model among workers of this machine (docs/parallel.md)."
)
_OTHER_MACHINES = (
    "`data_parallel_size` starts engine cores on this machine; those of other machines are `--engine-targets` of a frontend "
    "(docs/parallel.md)."
)
_PARALLEL = "It tunes vLLM's parallel workers; answers are the same."
_EXPERTS = "It tunes how vLLM computes mixtures of experts; answers are the same."
_KERNELS = "It tunes vLLM's kernels and graphs; Tetrad has its own, with the same answers."
_STATE_SPACE = "It tunes how vLLM computes state-space models; answers are the same."
_ENCODERS = "It tunes how vLLM computes image encoders; answers are the same."
_WHOLE_VIDEO = "All frames of a video that are read reach the model."
_MEDIA_CACHE = "It tunes how vLLM keeps and passes on preprocessed images; answers are the same."
_NO_CONNECTOR = "The outputs of image encoders stay in the worker that computed them."
_LORA = "It tunes how vLLM keeps adapters; answers are the same."
_LOADING = "It tunes how vLLM reads weights; they are the same weights."
_FILES = "A model's files are found by `model` alone."
_DRAFTS = "`speculative_config` has the options of speculative decoding."
_CONNECTORS = "`num_prefill_engines`, or `--kv-role` of an engine core, does it (docs/disaggregation.md)."
_DISK = "Weights are updated from a directory, vLLM's backend `disk`."
_OFFLOAD_MORE = "`cpu_offload_gb` is the one way to offload weights."
_OFFLOAD = "It has no meaning without the offloading that it tunes."
_CACHE = "The KV cache has one layout."
_CACHE_TUNING = "It tunes vLLM's KV cache; answers are the same."
_SCHEDULER = "The scheduler has no such limit."
_SCHEDULING = "It tunes vLLM's scheduler; `pipeline_depth` and `max_decode_slowdown` tune this one. Answers are the same."
_PLUGINS = "Of others' code, the services run `logits_processors` and, with `trust_remote_code`, the model's own."
_OUTPUTS = "Outputs do not have that."
_METRICS = "There are no such metrics."
_METRICS_TUNING = "It has no meaning for the metrics and spans that there are."
_LOGS = "Use `log_level`."
_ALWAYS = "It is always so."
_TRUST = "A model's own code is what the model's files bring, at their own revision."
_RECOVERY = "Recovery is always on (docs/recovery.md)."


@dataclass
class ForeignEngineArguments:
    """Arguments of vLLM 0.32 that Tetrad does not use; `EngineArgs` checks them."""

    nnodes: Any = argument(refused(1, _ONE_DEVICE))
    node_rank: Any = argument(refused(0, _ONE_DEVICE))
    prefill_context_parallel_size: Any = argument(refused(1, _ONE_DEVICE))
    decode_context_parallel_size: Any = argument(refused(1, _ONE_DEVICE))
    data_parallel_rank: Any = argument(refused(None, _OTHER_MACHINES))
    data_parallel_start_rank: Any = argument(refused(None, _OTHER_MACHINES))
    data_parallel_size_local: Any = argument(refused(None, _OTHER_MACHINES))
    data_parallel_hybrid_lb: Any = argument(refused(False, _OTHER_MACHINES))
    data_parallel_external_lb: Any = argument(refused(False, _OTHER_MACHINES))
    data_parallel_multi_port_external_lb: Any = argument(refused(False, _OTHER_MACHINES))
    enable_hc_sp: Any = argument(refused(False, _ONE_DEVICE))
    enable_elastic_ep: Any = argument(refused(False, _ONE_DEVICE))
    device_ids: Any = argument(refused(None, _ONE_DEVICE))
    enable_batch_sharded_sampling: Any = argument(refused(None, _ONE_DEVICE))
    distributed_executor_backend: Any = argument(ignored(None, _PARALLEL))
    master_addr: Any = argument(ignored("127.0.0.1", _PARALLEL))
    master_port: Any = argument(ignored(29501, _PARALLEL))
    distributed_timeout_seconds: Any = argument(ignored(None, _PARALLEL))
    cpu_distributed_timeout_seconds: Any = argument(ignored(None, _PARALLEL))
    numa_bind: Any = argument(ignored(False, _PARALLEL))
    numa_bind_nodes: Any = argument(ignored(None, _PARALLEL))
    numa_bind_cpus: Any = argument(ignored(None, _PARALLEL))
    dcp_comm_backend: Any = argument(ignored(None, _PARALLEL))
    dcp_q_replicate: Any = argument(ignored(None, _PARALLEL))
    dcp_kv_cache_interleave_size: Any = argument(ignored(1, _PARALLEL))
    cp_kv_cache_interleave_size: Any = argument(ignored(None, _PARALLEL))
    data_parallel_address: Any = argument(ignored(None, _PARALLEL))
    data_parallel_rpc_port: Any = argument(ignored(None, _PARALLEL))
    data_parallel_backend: Any = argument(ignored("mp", _PARALLEL))
    dp_sync_interval: Any = argument(ignored(16, _PARALLEL))
    disable_nccl_for_dp_synchronization: Any = argument(ignored(None, _PARALLEL))
    max_parallel_loading_workers: Any = argument(ignored(None, _PARALLEL))
    disable_custom_all_reduce: Any = argument(ignored(False, _PARALLEL))
    ray_workers_use_nsight: Any = argument(ignored(False, _PARALLEL))
    enable_nccl_comm_suspend: Any = argument(ignored(False, _PARALLEL))
    enable_ep_weight_filter: Any = argument(ignored(False, _EXPERTS))
    moe_backend: Any = argument(ignored("auto", _EXPERTS))
    all2all_backend: Any = argument(ignored("allgather_reducescatter", _EXPERTS))
    elastic_ep_max_dp_size: Any = argument(ignored(None, _EXPERTS))
    enable_dbo: Any = argument(ignored(False, _EXPERTS))
    ubatch_size: Any = argument(ignored(0, _EXPERTS))
    dbo_decode_token_threshold: Any = argument(ignored(32, _EXPERTS))
    dbo_prefill_token_threshold: Any = argument(ignored(512, _EXPERTS))
    eplb_config: Any = argument(ignored(None, _EXPERTS))
    enable_eplb: Any = argument(ignored(False, _EXPERTS))
    expert_placement_strategy: Any = argument(ignored("linear", _EXPERTS))
    cudagraph_capture_sizes: Any = argument(ignored(None, _KERNELS))
    max_cudagraph_capture_size: Any = argument(ignored(None, _KERNELS))
    ir_op_priority: Any = argument(ignored(None, _KERNELS))
    linear_backend: Any = argument(ignored("auto", _KERNELS))
    sparse_indexer_topk_backend: Any = argument(ignored("auto", _KERNELS))
    disable_cascade_attn: Any = argument(ignored(None, _KERNELS))
    compilation_config: Any = argument(ignored(None, _KERNELS))
    attention_config: Any = argument(ignored(None, _KERNELS))
    kernel_config: Any = argument(ignored(None, _KERNELS))
    enable_flashinfer_autotune: Any = argument(ignored(None, _KERNELS))
    attention_backend: Any = argument(ignored(None, _KERNELS))
    optimization_level: Any = argument(ignored(None, _KERNELS))
    performance_mode: Any = argument(ignored("balanced", _KERNELS))
    kv_sharing_fast_prefill: Any = argument(ignored(False, _KERNELS))
    swa_bounded_replay: Any = argument(ignored(True, _KERNELS))
    use_fp64_gumbel: Any = argument(ignored(False, _KERNELS))
    gdn_prefill_backend: Any = argument(ignored(None, _KERNELS))
    kda_prefill_backend: Any = argument(ignored(None, _KERNELS))
    kda_decode_backend: Any = argument(ignored(None, _KERNELS))
    jit_monitor_mode: Any = argument(ignored("warn", _KERNELS))
    jit_monitor_verbose: Any = argument(ignored(False, _KERNELS))
    mamba_config: Any = argument(ignored(None, _STATE_SPACE))
    mamba_cache_dtype: Any = argument(ignored("auto", _STATE_SPACE))
    mamba_ssm_cache_dtype: Any = argument(ignored("auto", _STATE_SPACE))
    mamba_block_size: Any = argument(ignored(None, _STATE_SPACE))
    mamba_cache_mode: Any = argument(ignored("none", _STATE_SPACE))
    enable_mamba_shared_prefix_checkpoint: Any = argument(ignored(False, _STATE_SPACE))
    replayssm_buffer_len: Any = argument(ignored(16, _STATE_SPACE))
    use_replayssm: Any = argument(ignored(False, _STATE_SPACE))
    mamba_backend: Any = argument(ignored(None, _STATE_SPACE))
    mamba_ssu_algorithm: Any = argument(ignored(None, _STATE_SPACE))
    enable_mamba_cache_stochastic_rounding: Any = argument(ignored(False, _STATE_SPACE))
    mamba_cache_philox_rounds: Any = argument(ignored(0, _STATE_SPACE))
    engram_config: Any = argument(ignored(None, _STATE_SPACE))
    interleave_mm_strings: Any = argument(
        refused(False, "A template that reads texts alone gets a message's images before its text, all others in their places.")
    )
    mm_processor_cache_type: Any = argument(ignored("lru", _MEDIA_CACHE))
    mm_hasher_algorithm: Any = argument(ignored("blake3", _MEDIA_CACHE))
    mm_shm_cache_max_object_size_mb: Any = argument(ignored(128, _MEDIA_CACHE))
    mm_encoder_tp_mode: Any = argument(ignored("weights", _ENCODERS))
    mm_encoder_attn_backend: Any = argument(ignored(None, _ENCODERS))
    mm_encoder_attn_dtype: Any = argument(ignored(None, _ENCODERS))
    mm_encoder_fp8_scale_path: Any = argument(ignored(None, _ENCODERS))
    mm_encoder_fp8_scale_save_margin: Any = argument(ignored(1.5, _ENCODERS))
    skip_mm_profiling: Any = argument(ignored(False, _ENCODERS))
    video_pruning_rate: Any = argument(refused(None, _WHOLE_VIDEO))
    video_pruning_method: Any = argument(refused("evs", _WHOLE_VIDEO))
    mm_tensor_ipc: Any = argument(ignored("direct_rpc", _MEDIA_CACHE))
    mm_processor_device: Any = argument(ignored("auto", _MEDIA_CACHE))
    mm_ipc_gpu_memory_gb: Any = argument(ignored(0, _MEDIA_CACHE))
    mm_device_do_normalize: Any = argument(ignored(True, _ENCODERS))
    disable_chunked_mm_input: Any = argument(ignored(False, _ENCODERS))
    enable_shm_tensor_arena: Any = argument(ignored(False, _MEDIA_CACHE))
    mm_encoder_only: Any = argument(refused(False, "An engine core runs the language model as well."))
    mm_encoder_fp8_scale_save_path: Any = argument(refused(None, "Image encoders have no scales to save."))
    ec_transfer_config: Any = argument(refused(None, _NO_CONNECTOR))
    ec_manager_config: Any = argument(refused(None, _NO_CONNECTOR))
    fully_sharded_loras: Any = argument(ignored(False, _LORA))
    lora_dtype: Any = argument(ignored("auto", _LORA))
    lora_target_modules: Any = argument(refused(None, "Every module that an adapter's files name is changed."))
    enable_tower_connector_lora: Any = argument(refused(False, "Adapters change the language model alone."))
    specialize_active_lora: Any = argument(ignored(False, _LORA))
    enable_mixed_moe_lora_format: Any = argument(ignored(False, _LORA))
    enable_moe_shared_loras: Any = argument(ignored(False, _LORA))
    max_lora_cls_labels: Any = argument(refused(None, "Adapters do not change the layer that makes classes."))
    safetensors_load_strategy: Any = argument(ignored(None, _LOADING))
    safetensors_prefetch_num_threads: Any = argument(ignored(None, _LOADING))
    safetensors_prefetch_block_size: Any = argument(ignored(None, _LOADING))
    ignore_patterns: Any = argument(ignored(None, _LOADING))
    use_tqdm_on_load: Any = argument(ignored(True, _LOADING))
    pt_load_map_location: Any = argument(ignored("cpu", _LOADING))
    model_weights: Any = argument(refused("", _FILES))
    hf_config_path: Any = argument(refused(None, _FILES))
    model_loader_extra_config: Any = argument(refused({}, _FILES))
    model_class_overrides: Any = argument(refused({}, _FILES))
    spec_method: Any = argument(refused(None, _DRAFTS))
    spec_model: Any = argument(refused(None, _DRAFTS))
    spec_tokens: Any = argument(refused(None, _DRAFTS))
    kv_transfer_config: Any = argument(refused(None, _CONNECTORS))
    kv_offloading_size: Any = argument(renamed("It is `swap_space`, in GiB as well."))
    cpu_offload_params: Any = argument(refused(set(), _OFFLOAD_MORE))
    offload_group_size: Any = argument(refused(0, _OFFLOAD_MORE))
    offload_params: Any = argument(refused(set(), _OFFLOAD_MORE))
    offload_backend: Any = argument(ignored("auto", _OFFLOAD))
    offload_num_in_group: Any = argument(ignored(1, _OFFLOAD))
    offload_prefetch_step: Any = argument(ignored(1, _OFFLOAD))
    kv_offloading_backend: Any = argument(ignored("native", _OFFLOAD))
    disable_sliding_window: Any = argument(refused(False, _CACHE))
    kv_cache_memory_bytes: Any = argument(renamed("It is `kv_cache_memory_gib`, in bytes."))
    kv_cache_dtype_skip_layers: Any = argument(refused([], _CACHE))
    prefix_cache_retention_interval: Any = argument(refused(0, _CACHE))
    prefix_match_unit: Any = argument(refused(None, _CACHE))
    prefix_caching_hash_algo: Any = argument(ignored("sha256", _CACHE_TUNING))
    disable_hybrid_kv_cache_manager: Any = argument(ignored(None, _CACHE_TUNING))
    watermark: Any = argument(ignored(0.0, _CACHE_TUNING))
    max_num_scheduled_tokens: Any = argument(
        refused(None, "`max_num_batched_tokens` limits the tokens that a step computes, its drafts among them.")
    )
    long_prefill_token_threshold_adaptive: Any = argument(refused(False, _SCHEDULER))
    max_num_active_seqs: Any = argument(refused(None, _SCHEDULER))
    scheduler_reserve_full_isl: Any = argument(ignored(True, _SCHEDULING))
    prefill_schedule_interval: Any = argument(ignored(1, _SCHEDULING))
    async_scheduling: Any = argument(ignored(None, _SCHEDULING))
    scheduler_cls: Any = argument(refused(None, _PLUGINS))
    worker_extension_cls: Any = argument(refused("", _PLUGINS))
    io_processor_plugin: Any = argument(refused(None, _PLUGINS))
    reasoning_parser_plugin: Any = argument(refused(None, _PLUGINS))
    additional_config: Any = argument(refused({}, _PLUGINS))
    worker_cls: Any = argument(refused("auto", _PLUGINS))
    enable_return_routed_experts: Any = argument(refused(False, _OUTPUTS))
    return_sampling_mask: Any = argument(refused(False, _OUTPUTS))
    aux_output_config: Any = argument(refused(None, _OUTPUTS))
    enable_trace_replay: Any = argument(refused(False, _OUTPUTS))
    cudagraph_metrics: Any = argument(refused(False, _METRICS))
    enable_mfu_metrics: Any = argument(refused(False, _METRICS))
    enable_mm_processor_stats: Any = argument(refused(False, _METRICS))
    custom_histogram_buckets: Any = argument(refused(None, _METRICS))
    enable_layerwise_nvtx_tracing: Any = argument(refused(False, _METRICS))
    show_hidden_metrics_for_version: Any = argument(ignored(None, _METRICS_TUNING))
    collect_detailed_traces: Any = argument(ignored(None, _METRICS_TUNING))
    aggregate_engine_logging: Any = argument(ignored(False, _METRICS_TUNING))
    logging_config: Any = argument(refused(None, _LOGS))
    log_config_file: Any = argument(refused(None, _LOGS))
    enable_sleep_mode: Any = argument(ignored(False, _ALWAYS))
    enable_cumem_allocator: Any = argument(ignored(False, _ALWAYS))
    sleep_mode_offload_cudagraph: Any = argument(ignored(False, _ALWAYS))
    code_revision: Any = argument(ignored(None, _TRUST))
    fault_tolerance_config: Any = argument(ignored(None, _RECOVERY))
    enable_fault_tolerance: Any = argument(ignored(False, _RECOVERY))
    kv_events_config: Any = argument(
        refused(
            None,
            ("An engine core sends KV events over gRPC to any number of readers, without being told so (docs/contracts.md)."),
        )
    )
    profiler_config: Any = argument(
        ignored(None, "Profiles are written by `start_profile` and `stop_profile`, without being configured.")
    )
    sleep_preserve_parameter_names: Any = argument(refused([], "Level 2 drops all weights."))
    skip_tokenizer_init: Any = argument(
        ignored(False, ("The tokenizer is loaded all the same: prompts of ids work, and their answers have text, too."))
    )
    renderer_num_workers: Any = argument(ignored(1, "`tokenizer_pool_size` says how many tokenizers there are."))
    watermark_config: Any = argument(refused(None, "Watermarks are not supported."))
    diffusion_config: Any = argument(refused(None, "Diffusion models are not supported."))
    quantization_config: Any = argument(refused(None, "The model's files say how they are quantized."))
    allow_deprecated_quantization: Any = argument(
        ignored(False, "The model's files say how they are quantized; what cannot be read is refused.")
    )
    weight_transfer_config: Any = argument(refused(None, _DISK, {"backend": "disk"}))
    reasoning_config: Any = argument(refused(None, "`reasoning_parser` is all that there is to say about reasoning."))
    shutdown_timeout: Any = argument(ignored(0, "`close` ends the services within 5 s."))
    fail_on_environ_validation: Any = argument(ignored(False, "An unknown TETRAD_ variable is always refused."))
    tokens_only: Any = argument(refused(False, "It is a flag of vLLM's server."))
    tokenizer_mode: Any = argument(
        refused("auto", "The tokenizer is the model's, as transformers reads it.", "hf", "fast", "slow")
    )
    config_format: Any = argument(refused("auto", "config.json or GGUF metadata are read.", "hf"))
    model_impl: Any = argument(
        refused(
            "auto",
            "The architecture decides: families of docs/models.md run through Tetrad's code, others through transformers'.",
            "vllm",
        )
    )
    structured_outputs_config: Any = argument(
        refused(
            None,
            "One backend, llguidance, has all kinds of constraints; with a `reasoning_parser` they hold after the reasoning.",
            {"backend": "auto"},
            {"backend": "guidance"},
            {"backend": "xgrammar"},
            {"backend": "outlines"},
        )
    )

    def check_foreign(self) -> None:
        """Raise UnsupportedArgument for the first argument with an unsupported value."""
        for name, verdict in verdicts_of(type(self)).items():
            verdict.check(name, getattr(self, name))
