"""`tetrad serve`: runs the four services on this machine until Ctrl-C. Reports the progress of the start, and its end."""

import argparse
import asyncio
from dataclasses import replace

from tetrad.cli.also import add_also_option, also_settings
from tetrad.cli.announcement import announcement, engine_facts, has_chat_template
from tetrad.cli.config_file import add_config_options, config_text, parse_with_config
from tetrad.cli.options import add_engine_options, engine_args, new_parser
from tetrad.cli.own_server import unless_failed
from tetrad.cli.serve_signals import ServeSignals
from tetrad.cli.server_options import add_server_options, address_of, check_auto_tool_choice, server_fields
from tetrad.cli.service_manager import ServiceManager
from tetrad.cli.startup import StartProgress, compile_kernels, free_port, starting_line, too_slow
from tetrad.cli.termination import exit_at_sigterm
from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.http.responses.database import check_store
from tetrad.services.errors import InvalidRequest, TetradError
from tetrad.services.log import configure_command_logging
from tetrad.services.settings import refuse_unknown_variables
from tetrad.services.tls.identity import Identity
from tetrad.stack.local_stack import LocalStack
from tetrad.stack.stack_settings import SETTINGS, StackSettings


def run(arguments: list[str]) -> int:
    """Serve until the command is stopped; return 0 after an orderly end."""
    text = "Serve a model with an OpenAI-compatible API. All services run on this machine and stop with this command."
    parser = new_parser("serve", text, usage="[OPTIONS] [MODEL]")
    text = "Number of frontends, which share the ports, the limits and the store of responses."
    parser.add_argument("--api-server-count", type=int, default=1, metavar="N", help=text)
    text = "Maximum time to start all services, in seconds."
    parser.add_argument("--start-timeout-s", type=float, default=600.0, metavar="X", help=text)
    add_also_option(parser)
    add_config_options(parser)
    add_server_options(parser)
    add_engine_options(parser)
    options = parse_with_config(parser, arguments)
    options.host, options.port, options.uds = address_of(options)
    if options.print_config:
        print(config_text(parser, options), end="")
        return 0
    refuse_unknown_variables("TETRAD_", SETTINGS)
    if not options.start_timeout_s > 0:
        text = f"--start-timeout-s must be more than 0, got {options.start_timeout_s:g}."
        raise InvalidRequest(text, field="start_timeout_s")
    progress = StartProgress()
    with exit_at_sigterm():  # the first process of a container ignores it otherwise, and downloads take minutes
        settings = _settings(options, progress)
    return asyncio.run(_serve(settings, options, progress, ServiceManager.of_environment()))


def _settings(options: argparse.Namespace, progress: StartProgress) -> StackSettings:
    """Return the settings of the services. Blocks: downloads a model, and compiles kernels, if necessary."""
    args = engine_args(options)
    configure_command_logging(args.log_level, also_stdout=True)
    port = {} if options.uds is not None else {"port": free_port(options.host, options.port)}
    fields = {**server_fields(options), **port}
    further = also_settings(options.also or (), args, report=progress.say)
    settings = args.stack_settings(report=progress.say, **fields)
    check_auto_tool_choice(options, settings.frontend)
    settings = replace(settings, api_server_count=options.api_server_count, further=further)
    Guard(settings.frontend)  # invalid keys and certificates are reported before anything starts
    check_store(settings.frontend.responses_store)
    if settings.frontend.public_tls is not None:
        Identity(settings.frontend.public_tls)
    compile_kernels(settings, progress.say)
    return settings


async def _serve(settings: StackSettings, options: argparse.Namespace, progress: StartProgress, manager: ServiceManager) -> int:
    stack = LocalStack(settings, serve=True, on_state=progress.on_state)
    signals = ServeSignals(on_second=stack.kill)
    try:
        progress.say(starting_line(settings))
        if not await signals.unless_stopped(_start(stack, options.start_timeout_s)):
            progress.say("Stopping")
            return 0
        can_chat = await has_chat_template(stack.tokenizer_targets[0])
        engine = await engine_facts(stack.engine_admin_targets[0])
        print(
            announcement(stack.frontend_settings, engine, num_engines=settings.num_engines, can_chat=can_chat),
            flush=True,
        )
        manager.ready()
        restarting = _restart_when_asked(stack, signals, options.start_timeout_s, progress, manager)
        await signals.unless_stopped(unless_failed(restarting, stack.wait_failed()))
        progress.say("Stopping")
    finally:
        manager.stopping()
        await stack.close()
    return 0


async def _start(stack: LocalStack, timeout_s: float) -> None:
    try:
        await stack.start(timeout_s=timeout_s)
    except TimeoutError:
        raise too_slow(timeout_s) from None


async def _restart_when_asked(
    stack: LocalStack, signals: ServeSignals, timeout_s: float, progress: StartProgress, manager: ServiceManager
) -> None:
    """Restart every service on each SIGHUP; a failed restart is reported, and later ones are still possible."""
    while True:
        await signals.wait_restart()
        progress.say("Restarting every service")
        manager.reloading()
        try:
            await stack.restart(timeout_s=timeout_s)
        except TimeoutError:
            progress.say(f"Not every service was ready again after {timeout_s:g} s")
        except TetradError as error:
            progress.say(f"Not every service came back: {error.message}")
        else:
            progress.say("Every service was restarted")
        manager.ready()
