"""Service: builds one engine core for one worker group, and serves it until it is stopped. Only this file knows all parts."""

import asyncio
import time
from functools import partial
from typing import Any, Literal, TypeVar

from tetrad.engine_core_svc.api.admin import EngineCoreAdminServicer
from tetrad.engine_core_svc.api.ports import Ports
from tetrad.engine_core_svc.api.servicer import EngineCoreServicer
from tetrad.engine_core_svc.api.trace_points import trace_points
from tetrad.engine_core_svc.api.wire import encode_info, instance_id_of
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.draft_metrics import metrics_of_level
from tetrad.engine_core_svc.core.message_sizes import MessageLimits
from tetrad.engine_core_svc.core.speculative_config import read_speculative_config
from tetrad.engine_core_svc.engine.admission import Admission, AdmissionLimits
from tetrad.engine_core_svc.engine.engine import Engine
from tetrad.engine_core_svc.engine.media_check import AttendedMediaCheck, MediaCheck
from tetrad.engine_core_svc.engine.queue_limits import QueueLimits
from tetrad.engine_core_svc.engine.transfer_check import TransferCheck
from tetrad.engine_core_svc.kv_cache.block_samples import BlockSamples
from tetrad.engine_core_svc.kv_cache.connector import ConnectorChain, KVConnector
from tetrad.engine_core_svc.kv_cache.event_log import KvEventLog
from tetrad.engine_core_svc.kv_cache.host_tier import HostTier
from tetrad.engine_core_svc.kv_cache.kv_transfer import KvTransfers, check_model
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.media.attended import AttendedMedia
from tetrad.engine_core_svc.media.planning import Media, NoMedia
from tetrad.engine_core_svc.media.store import MediaStore
from tetrad.engine_core_svc.observability.metrics import EngineMetrics, NoStepLog
from tetrad.engine_core_svc.observability.request_spans import RequestSpans
from tetrad.engine_core_svc.observability.step_log import WrittenStepLog
from tetrad.engine_core_svc.scheduler.adapters import AdapterLimits, Adapters
from tetrad.engine_core_svc.scheduler.budget import NoStages
from tetrad.engine_core_svc.scheduler.drafting import Drafts, NoDrafts
from tetrad.engine_core_svc.scheduler.drafts.proposers import drafts_for
from tetrad.engine_core_svc.scheduler.fan_out_throttle import MeasuringFanOutThrottle, NoFanOutThrottle
from tetrad.engine_core_svc.scheduler.limits import SchedulerLimits
from tetrad.engine_core_svc.scheduler.parked_requests import ORDERS_OF_ARRIVAL
from tetrad.engine_core_svc.scheduler.prefill_throttle import MeasuringThrottle, NoThrottle
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.scheduler.stage_filling import StageFilling
from tetrad.engine_core_svc.structured_output.compiler import GrammarCompiler
from tetrad.engine_core_svc.structured_output.filler import ThreadFiller
from tetrad.engine_core_svc.structured_output.grammars import Grammars
from tetrad.engine_core_svc.structured_output.tokenizer_link import TokenizerLink
from tetrad.engine_core_svc.structured_output.trial import Trial
from tetrad.engine_core_svc.worker.group import WorkerFacts, WorkerGroup
from tetrad.engine_core_svc.worker.kv_layout import KVCacheLayout
from tetrad.engine_core_svc.worker.link import WorkerLink
from tetrad.services.errors import InvalidRequest, Unavailable
from tetrad.services.log import get_logger
from tetrad.services.observability.metrics import shown
from tetrad.services.observability.profiling import StepProfiler, profile_directory
from tetrad.services.observability.tracer import open_tracer
from tetrad.services.rpc.carrier import GRPC, Carrier

_PAUSE_S = 0.2
# Seconds after which a grammar no longer delays others: it is compiled beside them, within the whole time.
_QUICK_GRAMMAR_S = 0.5
T = TypeVar("T")

log = get_logger()


async def serve(
    settings: EngineCoreSettings, shutdown: asyncio.Event, *, carrier: Carrier = GRPC, drafts: Drafts | None = None
) -> None:
    """Serve until `shutdown` is set, then drain. Raises the worker's error if it can never serve the model.

    Args:
        settings: settings of the engine core.
        shutdown: event that ends serving.
        carrier: carries the calls of sessions and operators, and those to the workers and tokenizers.
        drafts: proposes tokens for the worker to verify. None: chosen by the settings.
    """
    metrics = EngineMetrics(WrittenStepLog() if settings.enable_logging_iteration_details else NoStepLog())
    with shown(metrics.registry):
        await _serve(settings, shutdown, metrics, carrier, drafts)


async def _serve(
    settings: EngineCoreSettings, shutdown: asyncio.Event, metrics: EngineMetrics, carrier: Carrier, drafts: Drafts | None
) -> None:
    profiler = StepProfiler("engine-core", profile_directory(settings.profile_dir), trace_points)
    servicer, admin = EngineCoreServicer(), EngineCoreAdminServicer(profiler)
    tracer = open_tracer("engine-core", settings.otlp_endpoint)
    ports = Ports(settings, servicer, admin, carrier)
    await ports.start()
    workers = WorkerLink(settings, time.time_ns(), carrier)
    stopping = asyncio.create_task(shutdown.wait())
    starting = asyncio.create_task(start_engine(settings, workers, metrics, RequestSpans(tracer), carrier, drafts))
    tasks: list[asyncio.Task[Any]] = [starting]
    engine: Engine | None = None
    try:
        engine = await _first_of(stopping, starting)
        if engine is None:
            return
        info = encode_info(settings, workers.epoch, *workers.require_up())
        servicer.attach(engine, info)
        admin.attach(engine, info)
        running = asyncio.create_task(engine.run())
        tasks += [running, asyncio.create_task(engine.condition.follow(ports.set_ready))]
        await _first_of(stopping, running)
        await ports.drain(partial(_drain, engine, running))
    finally:
        stopping.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # First the sessions: an engine that is closed would fail their requests, which frontends can resume elsewhere.
        await ports.stop()
        if engine is not None:
            await engine.close()
        await workers.close()
        await asyncio.to_thread(tracer.close)


async def start_engine(
    settings: EngineCoreSettings,
    workers: WorkerGroup,
    metrics: EngineMetrics,
    spans: RequestSpans,
    carrier: Carrier,
    drafts: Drafts | None = None,
) -> Engine:
    """Wait for a worker that can serve the model, and return an engine with its layout."""
    layout, facts = await _first_worker(workers)
    drafts = drafts or _drafts(settings, facts, layout)
    settings = facts.settings_for_model(settings)
    messages = MessageLimits.of(facts.max_message_bytes)
    instance_id = instance_id_of(workers.epoch)
    kv_events = KvEventLog(layout.block_size, epoch=workers.epoch)
    tokenizer = TokenizerLink(
        settings.tokenizer_targets,
        facts.vocab_size,
        max_message_bytes=settings.max_message_bytes,
        timeout_s=settings.recovery_timeout_s,
        tls=settings.tls,
        carrier=carrier,
    )
    connector = _connector(settings, layout, facts, kv_events, instance_id)
    kv_cache = _kv_cache(settings, layout, connector, metrics)
    engine = Engine(
        _scheduler(settings, layout, messages, kv_cache, drafts, _media(settings, layout, facts)),
        _admission(settings, layout, facts, messages),
        workers,
        GrammarCompiler(
            tokenizer.vocabulary,
            Trial(min(settings.grammar_timeout_s, _QUICK_GRAMMAR_S)),
            metrics.grammar_seconds.observe,
            patient=Trial(settings.grammar_timeout_s) if settings.grammar_timeout_s > _QUICK_GRAMMAR_S else None,
        ),
        recovery_timeout_s=settings.recovery_timeout_s,
        stall_timeout_s=settings.step_timeout_s,
        long_steps_in_flight=settings.long_steps_in_flight,
        tokens_to_clear=max(settings.steps_in_flight, 1 + drafts.max_tokens) + 1,
        queue_limits=QueueLimits(settings.max_num_queued_reqs, settings.max_num_queued_tokens),
        kv_events=kv_events,
        metrics=metrics,
        spans=spans,
    )
    if workers.pause is not None:
        engine.orders.restore(workers.pause)
    return engine


def _drafts(settings: EngineCoreSettings, facts: WorkerFacts, layout: KVCacheLayout) -> Drafts:
    """Return the proposer of drafts that the settings choose.

    Raises:
        InvalidRequest: the worker or the model does not support drafts.
    """
    config = read_speculative_config(settings.speculative_config)
    keeps_states = facts.keeps_states or not any(group.is_state for group in layout.groups)
    generates = facts.pooling is None or facts.pooling.generates
    if config is None:
        return drafts_for(None) if facts.verifies_drafts and generates and keeps_states else NoDrafts()
    if not generates:
        raise InvalidRequest("speculative_config is of no use: the model generates no tokens.", field="speculative_config")
    if not facts.verifies_drafts:
        text = f"speculative_config is not supported: a worker on {facts.device} does not verify drafts."
        raise InvalidRequest(text, field="speculative_config")
    if not keeps_states:
        text = (
            "speculative_config is not supported for a model with states: those of a worker on "
            f"{facts.device} cannot go back behind a rejected draft."
        )
        raise InvalidRequest(text, field="speculative_config")
    return drafts_for(config)


def _scheduler(
    settings: EngineCoreSettings,
    layout: KVCacheLayout,
    messages: MessageLimits,
    kv_cache: KVCacheManager,
    drafts: Drafts,
    media: Media | NoMedia,
) -> Scheduler:
    limits = SchedulerLimits(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=layout.max_num_batched_tokens,
        long_prefill_token_threshold=settings.long_prefill_token_threshold,
        enable_chunked_prefill=settings.enable_chunked_prefill,
        policy=settings.scheduling_policy,
        messages=messages,
    )
    slowdown = settings.max_decode_slowdown if settings.enable_chunked_prefill else 0
    throttle = MeasuringThrottle(slowdown) if slowdown else NoThrottle()
    limits_of_loras = AdapterLimits(settings.max_loras, settings.num_cpu_loras)
    adapters = Adapters(limits_of_loras, ORDERS_OF_ARRIVAL[settings.scheduling_policy]) if settings.enable_lora else None
    fan_outs = MeasuringFanOutThrottle(settings.max_decode_slowdown) if settings.max_decode_slowdown else NoFanOutThrottle()
    grammars = Grammars(ThreadFiller(settings.grammar_threads))
    stages = StageFilling(settings.pipeline_parallel_size) if settings.pipeline_parallel_size > 1 else NoStages()
    make_metrics = metrics_of_level(settings.per_request_spec_decode_metrics, drafts.max_tokens)
    return Scheduler(
        limits, kv_cache, grammars, throttle, drafts, fan_outs, adapters, stages, media, make_draft_metrics=make_metrics
    )


def _kv_cache(
    settings: EngineCoreSettings, layout: KVCacheLayout, connector: KVConnector, metrics: EngineMetrics
) -> KVCacheManager:
    samples = BlockSamples(settings.kv_cache_metrics_sample, metrics.block_observers) if settings.kv_cache_metrics else None
    return KVCacheManager(
        layout.num_blocks,
        layout.block_size,
        groups=layout.groups,
        max_step_tokens=layout.max_num_batched_tokens,
        enable_caching=settings.enable_prefix_caching,
        connector=connector,
        watch=samples,
    )


def _connector(
    settings: EngineCoreSettings, layout: KVCacheLayout, facts: WorkerFacts, kv_events: KvEventLog, instance_id: str
) -> KVConnector:
    """Return the connectors of the KV cache. Raises Unsupported if its blocks cannot be moved, and the settings need that."""
    connectors: list[KVConnector] = [HostTier(layout.num_host_blocks)] if layout.num_host_blocks else []
    if settings.kv_role != "none":
        check_model(layout.groups, generates=facts.pooling is None or facts.pooling.generates)
        connectors.append(
            KvTransfers(
                instance_id,
                settings.kv_host_and_port,
                block_size=layout.block_size,
                max_kept_blocks=layout.num_blocks // 2,
                lease_s=settings.kv_lease_s,
            )
        )
    return ConnectorChain([*connectors, kv_events]) if connectors else kv_events


def _media(settings: EngineCoreSettings, layout: KVCacheLayout, facts: WorkerFacts) -> Media | NoMedia:
    if not facts.modalities:
        return NoMedia()
    kind = AttendedMedia if facts.is_encoder_decoder else Media
    return kind(
        MediaStore(settings.max_total_media_bytes),
        facts.encoder_cache_size(layout),
        max_step_tokens=layout.max_num_batched_tokens,
        splits_prompts=settings.enable_chunked_prefill,
        whole=[modality.name for modality in facts.modalities if modality.is_whole],
    )


def _admission(settings: EngineCoreSettings, layout: KVCacheLayout, facts: WorkerFacts, messages: MessageLimits) -> Admission:
    return Admission(
        AdmissionLimits(
            layout.max_model_len,
            facts.vocab_size,
            settings.priority_order,
            priorities_count=settings.scheduling_policy == "priority",
            block_size=layout.block_size,
            num_kv_groups=len(layout.groups),
            messages=messages,
            pools=facts.pooling is not None,
            embedding_size=facts.hidden_size if facts.takes_embeddings else 0,
            generates=facts.pooling is None or facts.pooling.generates,
            needs_all_tokens=facts.pooling is not None and facts.pooling.needs_all_tokens,
            answer_row_bytes=facts.answer_row_bytes,
            takes_extra_args=bool(facts.logits_processors),
            scores_prompts=facts.scores_prompts,
            writes_speech=facts.is_encoder_decoder,
            times_tokens=facts.times_tokens and facts.is_encoder_decoder,
            transfers=TransferCheck(settings.kv_role, settings.kv_peers),
            media=(AttendedMediaCheck if facts.is_encoder_decoder else MediaCheck)(
                settings.model,
                facts.modalities,
                cache_size=facts.encoder_cache_size(layout),
                max_message_bytes=facts.max_message_bytes,
                max_step_tokens=layout.max_num_batched_tokens,
            ),
        )
    )


async def _first_worker(workers: WorkerGroup) -> tuple[KVCacheLayout, WorkerFacts]:
    logged = ""
    while True:
        try:
            return await workers.bring_up()
        except Unavailable as error:
            if error.message != logged:  # log it once for repeated equal failures
                log.info("worker.awaited", error=error.message)
                logged = error.message
            await asyncio.sleep(_PAUSE_S)


async def _drain(engine: Engine, running: asyncio.Task[None]) -> None:
    """Drain the engine while it runs; if it fails meanwhile, return at once: its requests are handed back."""
    draining = asyncio.create_task(engine.drain())
    try:
        await asyncio.wait([draining, running], return_when=asyncio.FIRST_COMPLETED)
    finally:
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)


async def _first_of(stopping: asyncio.Task[Literal[True]], task: asyncio.Task[T]) -> T | None:
    """Wait for `task` or for the order to stop; return the task's result, or None if only the order arrived.

    Raises the task's error.
    """
    await asyncio.wait([stopping, task], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        return task.result()
    return None
