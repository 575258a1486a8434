"""`python -m tetrad.tokenizer_svc`: one tokenizer."""

import asyncio
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NoReturn

from tetrad.services.log import get_logger
from tetrad.services.metrics import shown
from tetrad.services.process import run_service
from tetrad.services.server import Server
from tetrad.services.settings import load_settings
from tetrad.services.tracer import open_tracer
from tetrad.tokenizer_svc.chat import ChatLimits, ChatRenderer
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.tokenizer_svc.loading import load_tokenizer
from tetrad.tokenizer_svc.metrics import TokenizerMetrics
from tetrad.tokenizer_svc.servicer import TokenizerServicer
from tetrad.tokenizer_svc.trace_points import trace_points
from tetrad.v1 import tokenizer_pb2_grpc

PROG = "tetrad tokenizer"

log = get_logger()


async def serve(settings: TokenizerSettings, shutdown: asyncio.Event) -> None:
    """Serve until `shutdown` is set, then drain. Raises NotFound or ModelError if there is no tokenizer to serve."""
    started = time.monotonic()
    load = partial(load_tokenizer, settings.model, settings.tokenizer, chat_template=settings.chat_template)
    tokenizer = await asyncio.to_thread(load)
    limits = ChatLimits(settings.chat_template_timeout_s, settings.chat_template_memory_bytes, settings.max_text_bytes)
    chat = ChatRenderer(tokenizer.facts, limits)
    pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="encode")
    metrics = TokenizerMetrics()
    tracer = open_tracer("tokenizer", settings.otlp_endpoint)
    servicer = TokenizerServicer(
        tokenizer,
        chat,
        pool,
        model=settings.model,
        max_text_bytes=settings.max_text_bytes,
        max_message_bytes=settings.max_message_bytes,
        max_pending_text_bytes=settings.max_pending_text_bytes,
        long_text_threads=max(1, settings.threads // 2),
        metrics=metrics,
        tracer=tracer,
    )
    register = partial(tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server, servicer)
    server = Server(settings, {"tetrad.v1.TokenizerService": register})
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
        pool.shutdown(wait=False, cancel_futures=True)
        servicer.close()
        await asyncio.to_thread(tracer.close)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the service with these flags (by default the process's) and exit."""
    settings = load_settings(TokenizerSettings, sys.argv[1:] if argv is None else argv, prog=PROG)
    run_service("tokenizer", settings, partial(serve, settings), trace_points=trace_points)


if __name__ == "__main__":
    main()
