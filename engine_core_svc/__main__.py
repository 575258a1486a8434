"""`python -m tetrad.engine_core_svc`: one engine core, in front of one worker."""

import asyncio
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Literal, NoReturn, TypeVar

from tetrad.engine_core_svc.api.admin import EngineCoreAdminServicer
from tetrad.engine_core_svc.api.ports import Ports
from tetrad.engine_core_svc.api.servicer import EngineCoreServicer
from tetrad.engine_core_svc.api.trace_points import trace_points
from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.engine_core_svc.core.message_sizes import MessageLimits
from tetrad.engine_core_svc.engine.admission import Admission, AdmissionLimits
from tetrad.engine_core_svc.engine.engine import Engine
from tetrad.engine_core_svc.engine.queue_limits import QueueLimits
from tetrad.engine_core_svc.kv_cache.event_log import KvEventLog
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.kv_cache.second_tier import HostTier, NoSecondTier
from tetrad.engine_core_svc.observability.metrics import EngineMetrics
from tetrad.engine_core_svc.observability.request_spans import RequestSpans
from tetrad.engine_core_svc.scheduler.limits import SchedulerLimits
from tetrad.engine_core_svc.scheduler.prefill_throttle import MeasuringThrottle, NoThrottle
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.structured_output.compiler import GrammarCompiler
from tetrad.engine_core_svc.structured_output.filler import ThreadFiller
from tetrad.engine_core_svc.structured_output.grammars import Grammars
from tetrad.engine_core_svc.structured_output.tokenizer_link import TokenizerLink
from tetrad.engine_core_svc.structured_output.trial import Trial
from tetrad.engine_core_svc.worker.kv_layout import KVCacheLayout
from tetrad.engine_core_svc.worker.link import WorkerFacts, WorkerLink
from tetrad.services.errors import Unavailable
from tetrad.services.log import get_logger
from tetrad.services.metrics import shown
from tetrad.services.process import run_service
from tetrad.services.profiling import StepProfiler, profile_directory
from tetrad.services.settings import load_settings
from tetrad.services.tracer import open_tracer
from tetrad.services.version import SCHEMA_REVISION, VERSION
from tetrad.v1 import engine_core_pb2

PROG = "tetrad engine-core"
_PAUSE_S = 0.2
T = TypeVar("T")

log = get_logger()


async def serve(settings: EngineCoreSettings, shutdown: asyncio.Event) -> None:
    """Serve until `shutdown` is set, then drain. Raises the worker's error if it can never serve the model."""
    metrics = EngineMetrics()
    with shown(metrics.registry):
        await _serve(settings, shutdown, metrics)


async def _serve(settings: EngineCoreSettings, shutdown: asyncio.Event, metrics: EngineMetrics) -> None:
    profiler = StepProfiler("engine-core", profile_directory(settings.profile_dir), trace_points)
    servicer, admin = EngineCoreServicer(), EngineCoreAdminServicer(profiler)
    tracer = open_tracer("engine-core", settings.otlp_endpoint)
    ports = Ports(settings, servicer, admin)
    await ports.start()
    link = WorkerLink(settings, epoch=time.time_ns())
    stopping = asyncio.create_task(shutdown.wait())
    tasks: list[asyncio.Task[None]] = []
    engine: Engine | None = None
    try:
        engine = await _first_of(stopping, asyncio.create_task(start_engine(settings, link, metrics, RequestSpans(tracer))))
        if engine is None:
            return
        info = describe(settings, link)
        servicer.attach(engine, info)
        admin.attach(engine, info)
        running = asyncio.create_task(engine.run())
        tasks = [running, asyncio.create_task(engine.condition.follow(ports.set_ready))]
        await _first_of(stopping, running)
        await ports.drain(partial(_drain, engine, running))
    finally:
        stopping.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if engine is not None:
            await engine.close()
        await ports.stop()
        await link.close()
        await asyncio.to_thread(tracer.close)


async def start_engine(settings: EngineCoreSettings, link: WorkerLink, metrics: EngineMetrics, spans: RequestSpans) -> Engine:
    """Wait for a worker that can serve the model, and return an engine that fits it."""
    layout, facts = await _first_worker(link)
    messages = MessageLimits.of(facts.max_message_bytes)
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
    kv_events = KvEventLog(layout.block_size, epoch=link.epoch)
    kv_cache = KVCacheManager(
        layout.num_blocks,
        layout.block_size,
        enable_caching=settings.enable_prefix_caching,
        events=kv_events,
        second_tier=HostTier(layout.num_host_blocks) if layout.num_host_blocks else NoSecondTier(),
    )
    admission = Admission(
        AdmissionLimits(
            layout.max_model_len,
            facts.vocab_size,
            settings.priority_order,
            priorities_count=settings.scheduling_policy == "priority",
            block_size=layout.block_size,
            messages=messages,
        )
    )
    tokenizer = TokenizerLink(
        settings.tokenizer_targets, facts.vocab_size, max_message_bytes=settings.max_message_bytes, tls=settings.tls
    )
    engine = Engine(
        Scheduler(limits, kv_cache, Grammars(ThreadFiller(settings.grammar_threads)), throttle),
        admission,
        link,
        GrammarCompiler(tokenizer.vocabulary, Trial(settings.grammar_timeout_s), metrics.grammar_seconds.observe),
        recovery_timeout_s=settings.recovery_timeout_s,
        stall_timeout_s=settings.step_timeout_s,
        acquitted_after=settings.pipeline_depth + 1,
        queue_limits=QueueLimits(settings.max_num_queued_reqs, settings.max_num_queued_tokens),
        kv_events=kv_events,
        metrics=metrics,
        spans=spans,
    )
    if link.pauses.pause is not None:
        engine.orders.restore(link.pauses.pause)
    return engine


def describe(settings: EngineCoreSettings, link: WorkerLink) -> engine_core_pb2.EngineInfo:
    """Return how an engine introduces itself; its worker must have been brought up."""
    layout, facts = link.require_up()
    return engine_core_pb2.EngineInfo(
        engine_index=settings.data_parallel_rank,
        epoch=link.epoch,
        model=settings.model,
        max_model_len=layout.max_model_len,
        num_gpu_blocks=layout.num_blocks,
        block_size=layout.block_size,
        dtype=facts.dtype,
        weights_dtype=facts.weights_dtype,
        kv_cache_dtype=layout.cache_dtype,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=layout.max_num_batched_tokens,
        version=VERSION,
        schema_revision=SCHEMA_REVISION,
        vocab_size=facts.vocab_size,
        device=facts.device,
        priority_scheduling=settings.scheduling_policy == "priority",
        supports_shared_sampling_params=True,
        max_message_bytes=settings.max_message_bytes,
    )


async def _first_worker(link: WorkerLink) -> tuple[KVCacheLayout, WorkerFacts]:
    while True:
        try:
            return await link.bring_up()
        except Unavailable as error:
            log.info("worker.awaited", error=error.message)
            await asyncio.sleep(_PAUSE_S)


async def _drain(engine: Engine, running: asyncio.Task[None]) -> None:
    """Drain the engine as long as it runs; one that breaks meanwhile hands everything back."""
    draining = asyncio.create_task(engine.drain())
    try:
        await asyncio.wait([draining, running], return_when=asyncio.FIRST_COMPLETED)
    finally:
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)


async def _first_of(stopping: asyncio.Task[Literal[True]], task: asyncio.Task[T]) -> T | None:
    """Wait for `task`, whose error is raised, or for the order to stop, which gives None."""
    await asyncio.wait([stopping, task], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        return task.result()
    return None


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the service with these flags (by default the process's) and exit."""
    settings = load_settings(EngineCoreSettings, sys.argv[1:] if argv is None else argv, prog=PROG)
    run_service("engine-core", settings, partial(serve, settings), trace_points=trace_points)


if __name__ == "__main__":
    main()
