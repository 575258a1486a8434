"""Service: loads one tokenizer and serves it until it is stopped. Only this file knows all parts."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tetrad.services.log import get_logger
from tetrad.services.observability.metrics import shown
from tetrad.services.observability.tracer import open_tracer
from tetrad.services.rpc.carrier import GRPC, Carrier
from tetrad.services.rpc.server import Server
from tetrad.tokenizer_svc.api.speech_servicer import SpeechServicer
from tetrad.tokenizer_svc.chat.renderer import ChatLimits, ChatRenderer
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.tokenizer_svc.loading.load import load_tokenizer
from tetrad.tokenizer_svc.media.kinds import ProcessLimits
from tetrad.tokenizer_svc.media.load import open_media
from tetrad.tokenizer_svc.media_kinds import kinds_of
from tetrad.tokenizer_svc.observability.metrics import TokenizerMetrics
from tetrad.tokenizer_svc.speech.load import open_recordings
from tetrad.v1 import tokenizer_pb2_grpc

log = get_logger()


async def serve(settings: TokenizerSettings, shutdown: asyncio.Event, *, carrier: Carrier = GRPC) -> None:
    """Serve the calls of a carrier until `shutdown` is set, then drain.

    Raises NotFound or ModelError if there is no tokenizer to serve.
    """
    started = time.monotonic()
    load = partial(load_tokenizer, settings.model, settings.tokenizer, chat_template=settings.chat_template)
    tokenizer = await asyncio.to_thread(load)
    limits = ChatLimits(settings.chat_template_timeout_s, settings.chat_template_memory_bytes, settings.max_text_bytes)
    metrics = TokenizerMetrics()
    media = await open_media(
        tokenizer,
        settings.model,
        kinds_of(tokenizer, settings),
        processor_kwargs=json.loads(settings.mm_processor_kwargs or "{}"),
        cache_bytes=settings.media_cache_bytes,
        max_message_bytes=settings.max_message_bytes,
        metrics=metrics,
    )
    audio_limits = ProcessLimits(settings.audio_processes, settings.audio_timeout_s, settings.audio_memory_bytes)
    recordings = open_recordings(tokenizer, audio_limits, max_seconds=settings.max_audio_seconds)
    chat = ChatRenderer(tokenizer.facts, limits, media_texts=media.message_texts)
    pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="encode")
    tracer = open_tracer("tokenizer", settings.otlp_endpoint)
    servicer = SpeechServicer(
        tokenizer,
        chat,
        pool,
        model=settings.model,
        max_text_bytes=settings.max_text_bytes,
        max_message_bytes=settings.max_message_bytes,
        max_pending_text_bytes=settings.max_pending_text_bytes,
        max_pending_media_bytes=settings.max_pending_media_bytes,
        long_text_threads=max(1, settings.threads // 2),
        media=media,
        recordings=recordings,
        metrics=metrics,
        tracer=tracer,
    )
    register = partial(tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server, servicer)
    server = Server(settings, {"tetrad.v1.TokenizerService": register}, carrier=carrier)
    try:
        await chat.start()
        await server.start()
        log.info("tokenizer.loaded", model=settings.model, vocab_size=tokenizer.vocab_size, hash=tokenizer.hash)
        await server.health.set_ready(True)
        log.info("tokenizer.ready", seconds=round(time.monotonic() - started, 3))
        with shown(metrics.registry):
            await shutdown.wait()
            await server.drain(servicer.drain)
    finally:
        await server.stop()
        await chat.close()
        await media.close()
        if recordings is not None:
            await recordings.close()
        pool.shutdown(wait=False, cancel_futures=True)
        servicer.close()
        await asyncio.to_thread(tracer.close)
