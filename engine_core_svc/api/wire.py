"""Wire of the sessions: encodes the messages that frontends read.

Frequent messages are columns (services/rpc/columns.py): one step of 256 requests takes well under a millisecond.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.draft_metrics import DraftMetrics
from tetrad.engine_core_svc.core.media import Modality
from tetrad.engine_core_svc.core.plan import (
    EngineCoreOutput,
    FinishReason,
    Logprobs,
)
from tetrad.engine_core_svc.core.speculative_config import read_speculative_config
from tetrad.engine_core_svc.core.wire import encode_hand_over
from tetrad.engine_core_svc.scheduler.stats import SchedulerStats
from tetrad.engine_core_svc.sessions.outbox import Message, Notice, Rejection, StepOutputs
from tetrad.engine_core_svc.worker.group import WorkerFacts
from tetrad.engine_core_svc.worker.kv_layout import KVCacheLayout
from tetrad.engine_core_svc.worker.lora_wire import encode_lora_limits
from tetrad.services.message_size import BATCH_BYTES, DEFAULT_MAX_MESSAGE_BYTES, too_large
from tetrad.services.rpc.columns import pack_u32
from tetrad.services.rpc.status import to_status
from tetrad.services.version import CONTRACT_REVISION, SCHEMA_REVISION, VERSION
from tetrad.v1 import engine_core_pb2, types_pb2

_ENTRY_BYTES = 16
"""Upper limit of the bytes that a message adds to an entry: tags and lengths."""
_HEAD_BYTES = 256
"""Upper limit of the bytes of a message of outputs beside the outputs themselves."""


def encode_info(
    settings: EngineCoreSettings, epoch: int, layout: KVCacheLayout, facts: WorkerFacts
) -> engine_core_pb2.EngineInfo:
    """Return the static facts of an engine core, its worker and its KV cache."""
    config = read_speculative_config(settings.speculative_config)
    return engine_core_pb2.EngineInfo(
        engine_index=settings.data_parallel_rank,
        epoch=epoch,
        instance_id=instance_id_of(epoch),
        kv_role=_KV_ROLES[settings.kv_role],
        kv_connector="" if settings.kv_role == "none" else "grpc",
        model=settings.model,
        max_model_len=layout.max_model_len,
        num_gpu_blocks=layout.num_blocks,
        kv_cache_tokens=layout.num_tokens,
        block_size=layout.block_size,
        dtype=facts.dtype,
        weights_dtype=facts.weights_dtype,
        kv_cache_dtype=layout.cache_dtype,
        tensor_parallel_size=settings.tensor_parallel_size,
        pipeline_parallel_size=settings.pipeline_parallel_size,
        data_parallel_size=1,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=layout.max_num_batched_tokens,
        version=VERSION,
        schema_revision=SCHEMA_REVISION,
        contract_revision=CONTRACT_REVISION,
        vocab_size=facts.vocab_size,
        device=facts.device,
        priority_scheduling=settings.scheduling_policy == "priority",
        supports_shared_sampling_params=True,
        capabilities=[types_pb2.CAPABILITY_SHARED_SAMPLING_PARAMS, *_optional_capabilities(settings, facts)],
        supports_lora=settings.enable_lora,
        lora_limits=encode_lora_limits(settings),
        max_message_bytes=settings.max_message_bytes,
        pooling=types_pb2.PoolingInfo(**asdict(facts.pooling)) if facts.pooling else None,
        num_speculative_tokens=0 if config is None else config.num_speculative_tokens,
        logits_processors=facts.logits_processors,
        logprobs_mode=settings.logprobs_mode,
        modalities=map(_encode_modality, facts.modalities),
        encoder_cache_size=facts.encoder_cache_size(layout),
        is_encoder_decoder=facts.is_encoder_decoder,
        supports_transcription=facts.supports_transcription,
        max_media_bytes=settings.max_total_media_bytes if facts.modalities else 0,
    )


_KV_ROLES = {
    "none": types_pb2.KV_ROLE_UNSPECIFIED,
    "producer": types_pb2.KV_ROLE_PRODUCER,
    "consumer": types_pb2.KV_ROLE_CONSUMER,
    "both": types_pb2.KV_ROLE_BOTH,
}


def instance_id_of(epoch: int) -> str:
    """Return the name of the engine core of this epoch for other engine cores."""
    return f"{epoch:016x}"


def _encode_modality(modality: Modality) -> types_pb2.ModalityInfo:
    return types_pb2.ModalityInfo(
        modality=modality.name,
        max_items=modality.max_items,
        max_embeds_per_item=modality.max_embeds,
        is_whole=modality.is_whole,
    )


def _optional_capabilities(settings: EngineCoreSettings, facts: WorkerFacts) -> list[types_pb2.Capability]:
    has = {
        types_pb2.CAPABILITY_LORA: settings.enable_lora,
        types_pb2.CAPABILITY_KV_TRANSFER: settings.kv_role != "none",
        types_pb2.CAPABILITY_PROMPT_EMBEDS: facts.takes_embeddings,
        types_pb2.CAPABILITY_MULTIMODAL: bool(facts.modalities),
        types_pb2.CAPABILITY_PROMPT_SCORES: facts.scores_prompts,
        types_pb2.CAPABILITY_TOKEN_TIMES: facts.times_tokens and facts.is_encoder_decoder,
    }
    return [capability for capability, is_there in has.items() if is_there]


def encode_message(
    message: Message, engine_index: int = 0, most_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
) -> tuple[engine_core_pb2.SessionResponse, StepOutputs | None]:
    """Return an outbox message for the frontend, and the outputs that do not fit it and need another message.

    Args:
        message: a message from the outbox, or the rest from an earlier call.
        engine_index: index of this engine core.
        most_bytes: maximum bytes that the frontend reads. A larger single output becomes an error, which ends its request.
    """
    if isinstance(message, StepOutputs):
        outputs, rest = _encode_outputs(message, engine_index, most_bytes)
        return engine_core_pb2.SessionResponse(outputs=outputs), rest
    if isinstance(message, Rejection):
        rejected = engine_core_pb2.RequestRejected(request_id=message.request_id, status=to_status(message.error))
        return engine_core_pb2.SessionResponse(rejected=rejected), None
    return engine_core_pb2.SessionResponse(notice=_encode_notice(message)), None


def _encode_notice(notice: Notice) -> engine_core_pb2.EngineNotice:
    return engine_core_pb2.EngineNotice(kind=f"ENGINE_NOTICE_KIND_{notice.kind}", text=notice.text)


def _encode_outputs(
    step: StepOutputs, engine_index: int, most_bytes: int
) -> tuple[engine_core_pb2.EngineCoreOutputs, StepOutputs | None]:
    plain = [output for output in step.outputs if output.is_plain]
    message = engine_core_pb2.EngineCoreOutputs(
        step_id=step.step_id,
        engine_index=engine_index,
        timestamp_monotonic_s=step.timestamp,
        weight_version=step.weight_version,
    )
    if plain:
        message.decode.handles = pack_u32([output.request.handle for output in plain])
        message.decode.num_tokens = pack_u32([len(output.new_token_ids) for output in plain])
        message.decode.token_ids = pack_u32([token for output in plain for token in output.new_token_ids])
    if step.stats is not None:
        message.scheduler_stats.CopyFrom(encode_stats(step.stats))
    rich = [output for output in step.outputs if not output.is_plain]
    if not rich:
        return message, None
    num_taken = _add_rich(message, rich, step.timestamp, most_bytes)
    return message, replace(step, outputs=rich[num_taken:], stats=None) if num_taken < len(rich) else None


def _add_rich(
    message: engine_core_pb2.EngineCoreOutputs, outputs: Sequence[EngineCoreOutput], timestamp: float, most_bytes: int
) -> int:
    """Add outputs up to the maximum size of a message; return the number of added outputs."""
    room_bytes = min(BATCH_BYTES, most_bytes) - message.ByteSize()
    for num_taken, output in enumerate(outputs):
        encoded = _encode_output(output, timestamp)
        num_bytes = encoded.ByteSize() + _ENTRY_BYTES
        if num_bytes > most_bytes - _HEAD_BYTES:
            error = too_large("What one step brought for the request", num_bytes, most_bytes)
            encoded = _encode_output(EngineCoreOutput(output.request, [], FinishReason.ERROR, error=error), timestamp)
            num_bytes = encoded.ByteSize() + _ENTRY_BYTES
        room_bytes -= num_bytes
        is_first = not num_taken and not message.HasField("decode")
        if room_bytes < 0 and not is_first:
            return num_taken
        message.outputs.append(encoded)
    return len(outputs)


def _encode_output(output: EngineCoreOutput, timestamp: float) -> engine_core_pb2.EngineCoreOutput:
    message = engine_core_pb2.EngineCoreOutput(
        handle=output.request.handle,
        request_id=output.request.request_id,
        new_token_ids=pack_u32(output.new_token_ids),
        finish_reason=int(output.finish_reason or 0),  # type: ignore[arg-type] # the enum's numbers are the contract's
    )
    if isinstance(output.stop_reason, int):
        message.stop_reason.token_id = output.stop_reason
    elif output.stop_reason is not None:
        message.stop_reason.text = output.stop_reason
    if output.logprobs is not None:
        message.new_logprobs.CopyFrom(_encode_logprobs(output.logprobs))
    if output.prompt_logprobs is not None:
        message.new_prompt_logprobs.CopyFrom(_encode_logprobs(output.prompt_logprobs))
    if (scored := output.prompt_scores) is not None:
        message.prompt_scores.CopyFrom(
            types_pb2.PromptScores(scores=scored.scores, num_rows=scored.num_rows, width=scored.width)
        )
    if output.pooling_output is not None:
        tensor = message.pooling_output
        tensor.dtype = types_pb2.DataType.Value(f"DATA_TYPE_{output.pooling_output.dtype.upper()}")  # type: ignore[assignment] # stubs say int
        tensor.inline = output.pooling_output.data
        tensor.shape.extend(output.pooling_output.shape)
    if output.error is not None:
        message.status.CopyFrom(to_status(output.error))
    if output.prefill_stats is not None:
        stats = output.prefill_stats
        message.prefill_stats.num_prompt_tokens = stats.num_prompt_tokens
        message.prefill_stats.num_cached_tokens = stats.num_cached_tokens
        message.prefill_stats.num_local_cached_tokens = stats.num_cached_tokens - stats.num_external_cached_tokens
        message.prefill_stats.num_external_cached_tokens = stats.num_external_cached_tokens
        message.prefill_stats.num_computed_tokens = stats.num_prompt_tokens - stats.num_cached_tokens
        message.events.add(type=engine_core_pb2.ENGINE_CORE_EVENT_TYPE_QUEUED, timestamp_monotonic_s=output.request.queued_at)
        message.events.add(
            type=engine_core_pb2.ENGINE_CORE_EVENT_TYPE_SCHEDULED, timestamp_monotonic_s=output.request.scheduled_at
        )
    if output.finish_reason is not None:
        if (metrics := output.request.draft_metrics) is not None:
            message.spec_decode_metrics.CopyFrom(_encode_draft_metrics(metrics))
        if output.request.hand_over is not None:
            message.kv_transfer.CopyFrom(encode_hand_over(output.request.hand_over))
        for _ in range(output.request.num_preemptions):
            message.events.add(type=engine_core_pb2.ENGINE_CORE_EVENT_TYPE_PREEMPTED, timestamp_monotonic_s=timestamp)
    return message


def _encode_draft_metrics(metrics: DraftMetrics) -> engine_core_pb2.SpecDecodeMetrics:
    steps = metrics.per_step or ()
    return engine_core_pb2.SpecDecodeMetrics(
        num_draft_tokens=metrics.num_draft_tokens,
        num_accepted_tokens=sum(accepted * number for accepted, number in enumerate(metrics.histogram)),
        histogram=metrics.histogram,
        per_step_accepted=[accepted for accepted, _ in steps],
        per_step_drafted=[drafted for _, drafted in steps],
    )


def _encode_logprobs(logprobs: Logprobs) -> types_pb2.LogprobsColumns:
    return types_pb2.LogprobsColumns(
        token_ids=logprobs.token_ids,
        logprobs=logprobs.logprobs,
        ranks=logprobs.ranks,
        num_positions=logprobs.num_positions,
        width=logprobs.width,
    )


def encode_stats(stats: SchedulerStats) -> engine_core_pb2.SchedulerStats:
    """Return the scheduler's statistics as a message."""
    return engine_core_pb2.SchedulerStats(
        num_running_reqs=stats.num_running_reqs,
        num_waiting_reqs=stats.num_waiting_reqs,
        kv_cache_usage=stats.kv_cache_usage,
        prefix_cache_queries=stats.prefix_cache_queries,
        prefix_cache_hits=stats.prefix_cache_hits,
        num_preemptions=stats.num_preemptions,
        step_counter=stats.step_counter,
        encoder_cache_usage=stats.encoder_cache_usage,
        mm_cache_queries=stats.mm_cache_queries,
        mm_cache_hits=stats.mm_cache_hits,
        num_drafts=stats.num_drafts,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_tokens=stats.num_accepted_tokens,
        running_lora_adapters=stats.running_loras,
        waiting_lora_adapters=stats.waiting_loras,
        num_accepted_tokens_per_position=stats.num_accepted_by_place,
    )
