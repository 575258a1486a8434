"""Wire of facts: converts messages with the properties and the load of engine cores and tokenizers to the frontend's types."""

import json
from collections.abc import Iterable

from tetrad.frontend.engine.facts import EngineInfo, EngineLoad, KvCacheFacts, KvGroupFacts, KvRole, TokenizerInfo, WorkerStatus
from tetrad.frontend.media.items import ModalityFacts
from tetrad.frontend.media.speech import SpeechTask
from tetrad.frontend.request.pooling import PoolingFacts
from tetrad.frontend.request.steps import SchedulerFacts
from tetrad.services.message_size import DEFAULT_MAX_MESSAGE_BYTES
from tetrad.v1 import engine_core_pb2, tokenizer_pb2, types_pb2

SPEECH_TASKS = {
    types_pb2.SPEECH_TASK_TRANSCRIBE: SpeechTask.TRANSCRIBE,
    types_pb2.SPEECH_TASK_TRANSLATE: SpeechTask.TRANSLATE,
}
_LORA_LIMITS = ("max_loras", "max_cpu_loras")


def decode_engine_info(message: engine_core_pb2.EngineInfo) -> EngineInfo:
    """Return the facts of an engine core from its message."""
    facts = {name: getattr(message, name) for name in EngineInfo.__slots__ if name not in _LORA_LIMITS}
    facts |= {name: getattr(message.lora_limits, name) for name in _LORA_LIMITS}
    if not message.HasField("max_message_bytes"):
        facts["max_message_bytes"] = DEFAULT_MAX_MESSAGE_BYTES
    facts["kv_cache_tokens"] = message.kv_cache_tokens or message.num_gpu_blocks * message.block_size
    facts["capabilities"] = tuple(map(_decode_capability, message.capabilities))
    facts["logits_processors"] = tuple(message.logits_processors)
    facts["logprobs_mode"] = message.logprobs_mode or "raw_logprobs"
    facts["max_media_bytes"] = message.max_media_bytes
    facts["kv_role"] = _decode_role(message.kv_role)
    facts["modalities"] = _decode_modalities(message.modalities)
    facts["pooling"] = _decode_pooling_facts(message.pooling) if message.HasField("pooling") else None
    return EngineInfo(**facts)


def _decode_pooling_facts(message: types_pb2.PoolingInfo) -> PoolingFacts:
    return PoolingFacts(
        tasks=tuple(message.tasks),
        embedding_size=message.embedding_size,
        is_matryoshka=message.is_matryoshka,
        matryoshka_dimensions=tuple(message.matryoshka_dimensions),
        labels=tuple(message.labels),
        num_labels=message.num_labels,
        is_causal=message.is_causal,
        generates=message.generates,
        chunked_processing=message.chunked_processing,
        max_embed_len=message.max_embed_len,
    )


def _decode_modalities(messages: Iterable[types_pb2.ModalityInfo]) -> tuple[ModalityFacts, ...]:
    return tuple(ModalityFacts(each.modality, each.max_items, each.max_embeds_per_item) for each in messages)


def _decode_role(value: int) -> KvRole:
    """Return a role; none for a role of a later release."""
    return KvRole(value) if value in set(KvRole) else KvRole.NONE


def _decode_capability(value: int) -> str:
    """Return the name of a capability; the number for a capability of a later release."""
    if value not in types_pb2.Capability.values():
        return str(value)
    return types_pb2.Capability.Name(value).removeprefix("CAPABILITY_").lower()


def decode_engine_load(message: engine_core_pb2.EngineLoad) -> EngineLoad:
    """Return the load of an engine core from its message."""
    return EngineLoad(
        scheduler=decode_scheduler(message.stats),
        num_waiting_tokens=message.num_waiting_tokens,
        num_gpu_blocks=message.num_gpu_blocks,
        num_free_blocks=message.num_free_blocks,
        paused=message.paused,
        sleeping=message.sleeping,
        problem=message.problem,
        workers=[
            WorkerStatus(each.rank, each.version, each.device, each.connected_s if each.HasField("connected_s") else None)
            for each in message.workers
        ],
        kv_cache=_decode_kv_cache(message.kv_cache) if message.HasField("kv_cache") else None,
    )


def _decode_kv_cache(message: engine_core_pb2.KvCacheLoad) -> KvCacheFacts:
    return KvCacheFacts(
        block_size=message.block_size,
        num_free_cached_blocks=message.num_free_cached_blocks,
        num_blocks_cached=message.num_blocks_cached,
        num_blocks_evicted=message.num_blocks_evicted,
        num_blocks_passed=message.num_blocks_passed,
        num_host_blocks=message.num_host_blocks,
        num_used_host_blocks=message.num_used_host_blocks,
        num_blocks_swapped_out=message.num_blocks_swapped_out,
        num_blocks_swapped_in=message.num_blocks_swapped_in,
        num_host_hits=message.num_host_hits,
        groups=tuple(KvGroupFacts(each.sliding_window, each.is_state) for each in message.groups),
    )


def engine_info_request() -> engine_core_pb2.EngineCoreAdminServiceGetInfoRequest:
    """Return the admin service's request for the facts that `decode_engine_info` decodes."""
    return engine_core_pb2.EngineCoreAdminServiceGetInfoRequest()


def tokenizer_info_request() -> tokenizer_pb2.GetInfoRequest:
    """Return the request for the facts that `decode_tokenizer_info` decodes."""
    return tokenizer_pb2.GetInfoRequest()


def decode_tokenizer_info(message: tokenizer_pb2.GetInfoResponse) -> TokenizerInfo:
    """Return the facts of a tokenizer from its message."""
    return TokenizerInfo(
        model=message.model,
        vocab_size=message.vocab_size,
        bos_token_id=message.bos_token_id if message.HasField("bos_token_id") else None,
        eos_token_id=message.eos_token_id if message.HasField("eos_token_id") else None,
        eos_token_ids=frozenset(message.eos_token_ids),
        has_chat_template=message.has_chat_template,
        chat_template=message.chat_template,
        model_max_length=message.model_max_length if message.HasField("model_max_length") else None,
        tokenizer_hash=message.tokenizer_hash,
        version=message.version,
        generation_config=json.loads(message.generation_config_json or "{}"),
        prompts=dict(message.prompts),
        modalities=_decode_modalities(message.modalities),
        speech_tasks=tuple(task for value, task in SPEECH_TASKS.items() if value in set(message.speech_tasks)),
    )


def decode_scheduler(stats: engine_core_pb2.SchedulerStats) -> SchedulerFacts:
    """Return the statistics of a scheduler from their message."""
    return SchedulerFacts(
        num_running=stats.num_running_reqs,
        num_waiting=stats.num_waiting_reqs,
        kv_cache_usage=stats.kv_cache_usage,
        prefix_cache_queries=stats.prefix_cache_queries,
        prefix_cache_hits=stats.prefix_cache_hits,
        num_preemptions=stats.num_preemptions,
        num_drafts=stats.num_drafts,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_tokens=stats.num_accepted_tokens,
        num_accepted_by_place=tuple(stats.num_accepted_tokens_per_position),
        running_loras=tuple(stats.running_lora_adapters),
        waiting_loras=tuple(stats.waiting_lora_adapters),
        mm_cache_queries=stats.mm_cache_queries,
        mm_cache_hits=stats.mm_cache_hits,
    )
