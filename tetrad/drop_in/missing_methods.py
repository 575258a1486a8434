"""Methods of vLLM's classes that Tetrad does not have: each raises a NotImplementedError with the reason."""

from tetrad.services.verdicts import missing

_DRAFTS = "a draft model keeps its weights; an MTP layer gets new ones with the model's."
_CHECKSUMS = "`get_weight_version` says which weights serve; a worker reads their files again only if these have not changed."
_MEMORY = "`sleep` and `release_kv_cache_memory` give the memory of a device up."


class MissingFromLLM:
    """The methods that LLM lacks."""

    set_tokenizer = missing("set_tokenizer", "the tokenizer is a service; `tokenizer=` says which.")
    start_draft_weight_update = missing("start_draft_weight_update", _DRAFTS)


class MissingFromLLMEngine:
    """The methods that LLMEngine lacks."""

    from_vllm_config = missing("from_vllm_config", "EngineArgs make an engine: `from_engine_args`.")


class MissingFromAsyncLLM:
    """The methods that AsyncLLM lacks."""

    check_admission = missing("check_admission", "a request that may not wait is refused when it is added.")
    checkpoint_prepare = missing("checkpoint_prepare", _MEMORY)
    checkpoint_restore = missing("checkpoint_restore", _MEMORY)
    compute_weight_checksums = missing("compute_weight_checksums", _CHECKSUMS)
    from_vllm_config = missing("from_vllm_config", "EngineArgs make an engine: `from_engine_args`.")
    get_kv_event_sources = missing("get_kv_event_sources", "KV events are read over gRPC (docs/contracts.md).")
    get_status = missing("get_status", "`check_health` says whether requests are served.")
    handle_fault = missing("handle_fault", "recovery needs no orders (docs/recovery.md).")
    notify_kv_transfer_request_rejected = missing(
        "notify_kv_transfer_request_rejected", "unread blocks are freed after kv_lease_s."
    )
    scale_elastic_ep = missing("scale_elastic_ep", "engine cores are added by service discovery (docs/routing.md).")
    start_draft_weight_update = missing("start_draft_weight_update", _DRAFTS)
