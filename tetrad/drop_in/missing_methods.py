"""Methods of vLLM's classes that Tetrad does not have: each raises a NotImplementedError with the reason."""

from tetrad.services.verdicts import missing

_WEIGHTS = "weights are read once, from the model's files."
_MEMORY = "`sleep` gives weights and KV cache up together."


class MissingEverywhere:
    """The methods that LLM, LLMEngine and AsyncLLM lack."""

    release_kv_cache_memory = missing("release_kv_cache_memory", _MEMORY)
    get_weight_version = missing("get_weight_version", _WEIGHTS)


class MissingFromLLM(MissingEverywhere):
    """The methods that LLM lacks."""

    set_tokenizer = missing("set_tokenizer", "the tokenizer is a service; `tokenizer=` says which.")
    init_weight_transfer_engine = missing("init_weight_transfer_engine", _WEIGHTS)
    shutdown_weight_transfer_engine = missing("shutdown_weight_transfer_engine", _WEIGHTS)
    start_weight_update = missing("start_weight_update", _WEIGHTS)
    start_draft_weight_update = missing("start_draft_weight_update", _WEIGHTS)
    update_weights = missing("update_weights", _WEIGHTS)
    finish_weight_update = missing("finish_weight_update", _WEIGHTS)
    update_weight_version = missing("update_weight_version", _WEIGHTS)


class MissingFromLLMEngine(MissingEverywhere):
    """The methods that LLMEngine lacks."""

    set_weight_version = missing("set_weight_version", _WEIGHTS)
    from_vllm_config = missing("from_vllm_config", "EngineArgs make an engine: `from_engine_args`.")


class MissingFromAsyncLLM(MissingEverywhere):
    """The methods that AsyncLLM lacks."""

    check_admission = missing("check_admission", "a request that may not wait is refused when it is added.")
    checkpoint_prepare = missing("checkpoint_prepare", _MEMORY)
    checkpoint_restore = missing("checkpoint_restore", _MEMORY)
    compute_weight_checksums = missing("compute_weight_checksums", _WEIGHTS)
    from_vllm_config = missing("from_vllm_config", "EngineArgs make an engine: `from_engine_args`.")
    get_kv_event_sources = missing("get_kv_event_sources", "KV events are read over gRPC (docs/contracts.md).")
    get_status = missing("get_status", "`check_health` says whether requests are served.")
    handle_fault = missing("handle_fault", "recovery needs no orders (docs/recovery.md).")
    notify_kv_transfer_request_rejected = missing("notify_kv_transfer_request_rejected", "there are no KV connectors.")
    scale_elastic_ep = missing("scale_elastic_ep", "engine cores are added by service discovery (docs/routing.md).")
    init_weight_transfer_engine = missing("init_weight_transfer_engine", _WEIGHTS)
    shutdown_weight_transfer_engine = missing("shutdown_weight_transfer_engine", _WEIGHTS)
    start_weight_update = missing("start_weight_update", _WEIGHTS)
    start_draft_weight_update = missing("start_draft_weight_update", _WEIGHTS)
    update_weights = missing("update_weights", _WEIGHTS)
    finish_weight_update = missing("finish_weight_update", _WEIGHTS)
    update_weight_version = missing("update_weight_version", _WEIGHTS)
