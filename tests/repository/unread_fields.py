"""The fields of tetrad.v1's messages that no code reads, by reason. `Message.*`: all fields of the message."""

REFUSED = "A service refuses it with an error that names it."
INSIDE_REFUSED = "It is part of a field that is refused, or of a method that answers UNIMPLEMENTED."
NOT_SENT = "It is sent to peers that announce the capability for it, and no code announces that yet."
NOT_SET = "Nothing sets it yet: what it would say does not exist."
OTHERS_READ = "Programs of operators and clients read it; Tetrad's own services write it."
BY_NAME = "It is read by getattr with its name, which types do not show."
NOT_NEEDED = "The receiver gets the same in another field, or computes it."

UNREAD: dict[str, str] = {
    REFUSED: """
        EngineCoreRequest.encoder_prompt_token_ids EngineCoreRequest.kv_transfer_params
        EngineCoreRequest.reasoning_ended
        EngineCoreRequest.resumable EngineCoreRequest.session_id
        LoadModelRequest.config_format LoadModelRequest.kv_connector LoadModelRequest.load_format
        LoadModelRequest.revision
        MultiModalFeature.layouts
        NewRequestData.num_encoder_tokens
        PoolingParams.extra_args PoolingParams.late_interaction
        SchedulerOutput.block_copies SchedulerOutput.block_ids_to_zero
        SchedulerOutput.encoder_inputs
        SchedulerOutput.kv_connector_metadata
    """,
    INSIDE_REFUSED: """
        LateInteraction.*
        RemoteRef.* SharedMemoryRef.*
        KvConnectorConfig.*
        GetKvTransferEndpointResponse.agent GetKvTransferEndpointResponse.compatibility_hash
        GetKvTransferEndpointResponse.now_monotonic_s
        GetKvTransferEndpointResponse.regions KvRegion.*
        WorkerLifecycleServicePinLoraRequest.*
        WorkerLifecycleServiceInitWeightTransferRequest.*
    """,
    NOT_SENT: """
        SessionHello.capabilities
    """,
    NOT_SET: """
        KvTransferEvents.invalid_block_ids
        EncoderInputs.handles EncoderInputs.input_indices EncoderInputs.num_inputs
        EngineCoreOutput.num_nans_in_logits
        EngineCoreOutput.trace_headers
        EngineInfo.kv_cache_size_bytes
        SchedulerStats.connector_prefix_cache_hits SchedulerStats.connector_prefix_cache_queries
        SchedulerStats.num_waiting_for_remote_kvs_reqs
        KvCacheGroup.attention_chunk_size KvCacheGroup.head_size_v
        KvCacheGroup.num_state_blocks
        KvCacheGroup.sharing_layers
        ModelInfo.first_layer ModelInfo.num_stage_layers ModelInfo.uses_mrope
        WorkerLifecycleServiceGetInfoResponse.lora_limits
    """,
    OTHERS_READ: """
        EngineInfo.instance_id EngineInfo.kv_connector
        EngineInfo.data_parallel_size EngineInfo.schema_revision
        EngineLoad.num_sessions IsSleepingResponse.is_sleeping ResetPrefixCacheResponse.success
        GetInfoResponse.pad_token_id GetInfoResponse.unk_token_id
        InitializeKvCacheResponse.size_bytes
        LoadModelResponse.loaded_bytes LoadModelResponse.total_bytes
        Classification.* ClassifyResponse.* EmbedResponse.* ScoreResponse.*
        ListModelsResponse.models ListModelsResponse.next_page_token TokenLogprobs.top ToolCallDelta.id
        TranscribeResponse.summary TranscribeResponse.usage
        ModelInfo.architecture ModelInfo.num_layers ModelInfo.num_parameters
        WarmUpResponse.completed WarmUpResponse.total
        WorkerLifecycleServiceGetInfoResponse.contract_revision
        WorkerLifecycleServiceGetInfoResponse.schema_revision
    """,
    BY_NAME: """
        BatchedAnswer.render_chat ChatMessage.name ChatMessage.reasoning ChatMessage.tool_call_id
        ChatRequest.add_generation_prompt ChatRequest.chat_template ChatRequest.include_reasoning
        ChatRequest.parallel_tool_calls EngineInfo.contract_revision
        SamplingParams.logprobs SamplingParams.temperature
        TextOptions.detokenize TextOptions.skip_special_tokens TextOptions.spaces_between_special_tokens
        TextOptions.stream_interval
    """,
    NOT_NEEDED: """
        KvLease.request_id
        EngineCoreRequest.data_parallel_rank EngineCoreRequest.external_req_id SchedulerOutput.total_num_scheduled_tokens
    """,
}
