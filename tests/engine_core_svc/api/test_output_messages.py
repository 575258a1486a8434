"""Outputs and the facts of an engine core: every field of the messages written for clients."""

from tests.engine_core_svc.wire_values import columns
from tetrad.engine_core_svc.api.wire import encode_info, encode_message
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.media import Modality
from tetrad.engine_core_svc.core.plan import (
    EngineCoreOutput,
    FinishReason,
    PrefillStats,
    PromptScores,
)
from tetrad.engine_core_svc.core.pooling import PoolingFacts
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.stats import SchedulerStats
from tetrad.engine_core_svc.sessions.outbox import Notice, Rejection, StepOutputs
from tetrad.engine_core_svc.worker.group import WorkerFacts
from tetrad.engine_core_svc.worker.kv_layout import KVCacheLayout
from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import pack_u32
from tetrad.services.rpc.status import to_status
from tetrad.services.version import CONTRACT_REVISION, SCHEMA_REVISION, VERSION
from tetrad.v1 import engine_core_pb2, types_pb2


def a_request(**fields):
    given = {"key": 1, "request_id": "r", "token_ids": [1], "num_prompt_tokens": 1, "max_total_tokens": 9, "handle": 7}
    return Request(**given | fields)


def test_tokens_alone_are_columns_and_stats_go_along():
    outputs = [EngineCoreOutput(a_request(handle=handle), tokens) for handle, tokens in ((7, [3, 4]), (8, [5]))]
    stats = SchedulerStats(
        1, 2, 0.5, 3, 4, 5, 6, num_drafts=7, num_draft_tokens=8, num_accepted_tokens=9, running_loras=["a"],
        waiting_loras=["b", "c"], num_accepted_by_place=(6, 3), encoder_cache_usage=0.25, mm_cache_queries=10, mm_cache_hits=11,
    )  # fmt: skip

    written = encode_message(StepOutputs(3, outputs, stats, timestamp=1.5), engine_index=2)[0].outputs

    assert written == engine_core_pb2.EngineCoreOutputs(
        step_id=3,
        engine_index=2,
        timestamp_monotonic_s=1.5,
        decode=engine_core_pb2.DecodeBatch(
            handles=pack_u32([7, 8]), num_tokens=pack_u32([2, 1]), token_ids=pack_u32([3, 4, 5])
        ),
        scheduler_stats=engine_core_pb2.SchedulerStats(
            num_running_reqs=1,
            num_waiting_reqs=2,
            kv_cache_usage=0.5,
            prefix_cache_queries=3,
            prefix_cache_hits=4,
            num_preemptions=5,
            step_counter=6,
            num_drafts=7,
            num_draft_tokens=8,
            num_accepted_tokens=9,
            running_lora_adapters=["a"],
            waiting_lora_adapters=["b", "c"],
            num_accepted_tokens_per_position=[6, 3],
            encoder_cache_usage=0.25,
            mm_cache_queries=10,
            mm_cache_hits=11,
        ),
    )


def test_an_output_with_more_than_tokens_is_written_whole():
    message, rows = columns([3, 4], width=2)
    prompt_message, prompt_rows = columns([5, 6])
    error = InvalidRequest("no", field="f")
    output = EngineCoreOutput(
        a_request(queued_at=0.25, scheduled_at=0.75, num_preemptions=2),
        [3],
        FinishReason.ERROR,
        stop_reason="end",
        logprobs=rows,
        prompt_logprobs=prompt_rows,
        prompt_scores=PromptScores(bytes(8), 1, 2),
        prefill_stats=PrefillStats(num_prompt_tokens=10, num_cached_tokens=4),
        error=error,
    )

    written = encode_message(StepOutputs(3, [output], timestamp=1.5))[0].outputs

    event = engine_core_pb2.EngineCoreEvent
    expected = engine_core_pb2.EngineCoreOutput(
        handle=7,
        request_id="r",
        new_token_ids=pack_u32([3]),
        finish_reason=4,
        stop_reason=types_pb2.StopReason(text="end"),
        new_logprobs=message,
        new_prompt_logprobs=prompt_message,
        prompt_scores=types_pb2.PromptScores(scores=bytes(8), num_rows=1, width=2),
        status=to_status(error),
        prefill_stats=engine_core_pb2.PrefillStats(
            num_prompt_tokens=10, num_cached_tokens=4, num_local_cached_tokens=4, num_computed_tokens=6
        ),
        events=[
            event(type=engine_core_pb2.ENGINE_CORE_EVENT_TYPE_QUEUED, timestamp_monotonic_s=0.25),
            event(type=engine_core_pb2.ENGINE_CORE_EVENT_TYPE_SCHEDULED, timestamp_monotonic_s=0.75),
            event(type=engine_core_pb2.ENGINE_CORE_EVENT_TYPE_PREEMPTED, timestamp_monotonic_s=1.5),
            event(type=engine_core_pb2.ENGINE_CORE_EVENT_TYPE_PREEMPTED, timestamp_monotonic_s=1.5),
        ],
    )
    assert written == engine_core_pb2.EngineCoreOutputs(step_id=3, timestamp_monotonic_s=1.5, outputs=[expected])


def test_an_output_writes_nothing_of_what_it_does_not_have():
    """The preemptions of a request are told when it ends."""
    going_on = EngineCoreOutput(a_request(num_preemptions=1), [3], logprobs=columns([3])[1])
    ended = EngineCoreOutput(a_request(), [3], FinishReason.STOP, stop_reason=3)

    written = encode_message(StepOutputs(3, [going_on, ended], timestamp=1.5))[0].outputs

    fields = {"handle": 7, "request_id": "r", "new_token_ids": pack_u32([3])}
    assert not written.HasField("decode")
    assert not written.HasField("scheduler_stats")
    assert list(written.outputs) == [
        engine_core_pb2.EngineCoreOutput(**fields, new_logprobs=columns([3])[0]),
        engine_core_pb2.EngineCoreOutput(**fields, finish_reason=1, stop_reason=types_pb2.StopReason(token_id=3)),
    ]


def test_outputs_that_fill_a_message_leave_the_rest_of_their_step_for_the_next():
    outputs = [EngineCoreOutput(a_request(handle=handle), [3], FinishReason.STOP) for handle in range(100)]

    message, rest = encode_message(StepOutputs(3, outputs, timestamp=1.5), most_bytes=1000)

    num_written = len(message.outputs.outputs)
    assert 0 < num_written < 100
    assert (rest.step_id, list(rest.outputs), rest.timestamp) == (3, outputs[num_written:], 1.5)


def test_rejections_and_notices_are_messages_of_their_own():
    error = InvalidRequest("no", field="f")

    rejected, notice = (encode_message(each)[0] for each in (Rejection("r", error), Notice("WORKER_LOST", "It was lost.")))

    assert rejected.rejected == engine_core_pb2.RequestRejected(request_id="r", status=to_status(error))
    expected = engine_core_pb2.EngineNotice(kind=engine_core_pb2.ENGINE_NOTICE_KIND_WORKER_LOST, text="It was lost.")
    assert notice.notice == expected


def test_the_facts_of_an_engine_core_are_written_whole():
    settings = EngineCoreSettings(
        listen="unix:/tmp/x", model="m", max_num_seqs=7, tensor_parallel_size=1, scheduling_policy="priority",
        max_message_bytes=1 << 23, enable_lora=True, max_loras=2, max_cpu_loras=3, max_lora_rank=32,
        data_parallel_rank=1, max_total_media_bytes=1 << 20,
        speculative_config='{"method": "ngram", "num_speculative_tokens": 3}',
    )  # fmt: skip
    layout = KVCacheLayout(11, 16, 32, 64, cache_dtype="int8")
    pooling = PoolingFacts(
        ("embed",), 5, True, (2, 3), ("x", "y"), True, 2,
        needs_all_tokens=True, generates=True, chunked_processing=True, max_embed_len=9,
    )  # fmt: skip
    facts = WorkerFacts(
        "cpu", "float32", 99, 64, weights_dtype="q8_0", pooling=pooling, takes_embeddings=True,
        logits_processors=("m:A", "m:B"), modalities=(Modality("image", 3, 20, is_whole=True), Modality("audio", 0, 9)),
    )  # fmt: skip

    written = encode_info(settings, 12, layout, facts)

    assert written == engine_core_pb2.EngineInfo(
        engine_index=1, epoch=12, instance_id="000000000000000c", model="m", max_model_len=32, num_gpu_blocks=11,
        kv_cache_tokens=160, block_size=16,
        dtype="float32", weights_dtype="q8_0", kv_cache_dtype="int8",
        tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1,
        max_num_seqs=7, max_num_batched_tokens=64, version=VERSION, schema_revision=SCHEMA_REVISION,
        contract_revision=CONTRACT_REVISION, vocab_size=99, device="cpu", priority_scheduling=True,
        supports_shared_sampling_params=True,
        capabilities=[
            types_pb2.CAPABILITY_SHARED_SAMPLING_PARAMS, types_pb2.CAPABILITY_LORA, types_pb2.CAPABILITY_PROMPT_EMBEDS,
            types_pb2.CAPABILITY_MULTIMODAL,
        ],
        supports_lora=True,
        lora_limits=types_pb2.LoraLimits(max_loras=2, max_lora_rank=32, max_cpu_loras=3), max_message_bytes=1 << 23,
        pooling=types_pb2.PoolingInfo(
            tasks=["embed"], embedding_size=5, is_matryoshka=True, matryoshka_dimensions=[2, 3], labels=["x", "y"],
            is_causal=True, num_labels=2, needs_all_tokens=True, generates=True, chunked_processing=True,
            max_embed_len=9,
        ),
        logits_processors=["m:A", "m:B"], logprobs_mode="raw_logprobs",
            num_speculative_tokens=3, encoder_cache_size=64, max_media_bytes=1 << 20,
        modalities=[
            types_pb2.ModalityInfo(modality="image", max_items=3, max_embeds_per_item=20, is_whole=True),
            types_pb2.ModalityInfo(modality="audio", max_embeds_per_item=9),
        ],
    )  # fmt: skip


def test_an_engine_core_without_options_has_few_facts():
    settings = EngineCoreSettings(listen="unix:/tmp/x", model="m")

    written = encode_info(settings, 1, KVCacheLayout(11, 16, 32, 64), WorkerFacts("cpu", "float32", 99, 64))

    assert list(written.capabilities) == [types_pb2.CAPABILITY_SHARED_SAMPLING_PARAMS]
    assert not (written.supports_lora or written.priority_scheduling or written.num_speculative_tokens)
    assert not (written.encoder_cache_size or written.max_media_bytes)
    assert not (written.HasField("pooling") or written.HasField("lora_limits"))
