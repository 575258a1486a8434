"""`tetrad serve`: the four services on this machine, until Ctrl-C. Tells how far it is, and one line when it is ready."""

import argparse
import asyncio

from tetrad.cli.announcement import announcement, has_chat_template
from tetrad.cli.options import add_engine_options, engine_args, new_parser
from tetrad.cli.own_server import unless_failed
from tetrad.cli.serve_signals import ServeSignals
from tetrad.cli.server_options import add_server_options, server_fields
from tetrad.cli.startup import StartProgress, free_port, too_slow
from tetrad.frontend.access.guard import Guard
from tetrad.local_stack import SETTINGS, LocalStack, StackSettings
from tetrad.services.errors import TetradError
from tetrad.services.log import configure_command_logging
from tetrad.services.settings import refuse_unknown_variables
from tetrad.services.tls import Identity


def run(arguments: list[str]) -> int:
    """Serve; returns 0 after an orderly end."""
    parser = new_parser("serve", "Serve a model with an OpenAI-compatible API; everything runs on this machine.")
    parser.add_argument("--host", default="127.0.0.1", help="Address of the HTTP server.")
    parser.add_argument("--port", type=int, default=8000, help="Port of the HTTP server. 0: any free port.")
    parser.add_argument("--grpc-port", type=int, default=None, help="Port of the public gRPC API. Unset: none.")
    parser.add_argument("--start-timeout-s", type=float, default=600.0, help="Seconds that starting may take.")
    add_server_options(parser)
    add_engine_options(parser)
    options = parser.parse_args(arguments)
    refuse_unknown_variables("TETRAD_", SETTINGS)
    args = engine_args(options)
    configure_command_logging(args.log_level, also_stdout=True)
    port = free_port(options.host, options.port)
    progress = StartProgress()
    fields = {"host": options.host, "port": port, "grpc_port": options.grpc_port, **server_fields(options)}
    settings = args.stack_settings(report=progress.say, **fields)
    Guard(settings.frontend)  # keys and certificates that cannot be used are told before anything starts
    if settings.frontend.public_tls is not None:
        Identity(settings.frontend.public_tls)
    return asyncio.run(_serve(settings, options, progress))


async def _serve(settings: StackSettings, options: argparse.Namespace, progress: StartProgress) -> int:
    stack = LocalStack(settings, serve=True, on_state=progress.on_state)
    signals = ServeSignals(on_second=stack.kill)
    try:
        if not await signals.unless_stopped(_start(stack, options.start_timeout_s)):
            progress.say("Stopping")
            return 0
        can_chat = await has_chat_template(stack.tokenizer_targets[0])
        print(announcement(settings.frontend, can_chat=can_chat), flush=True)
        restarting = _restart_when_asked(stack, signals, options.start_timeout_s, progress)
        await signals.unless_stopped(unless_failed(restarting, stack.wait_failed()))
        progress.say("Stopping")
    finally:
        await stack.close()
    return 0


async def _start(stack: LocalStack, timeout_s: float) -> None:
    try:
        await stack.start(timeout_s=timeout_s)
    except TimeoutError:
        raise too_slow(timeout_s) from None


async def _restart_when_asked(stack: LocalStack, signals: ServeSignals, timeout_s: float, progress: StartProgress) -> None:
    """Restart every service whenever that is asked for; a restart that fails is told, and the next one may be asked for."""
    while True:
        await signals.wait_restart()
        progress.say("Restarting every service")
        try:
            await stack.restart(timeout_s=timeout_s)
        except TimeoutError:
            progress.say(f"Not every service was ready again after {timeout_s:g} s")
        except TetradError as error:
            progress.say(f"Not every service came back: {error.message}")
        else:
            progress.say("Every service was restarted")
