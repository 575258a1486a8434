"""Startup: finds a port, compiles kernels and prints progress on stderr, for commands that start a local stack."""

import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tetrad.services.errors import InvalidRequest, Unavailable
from tetrad.services.packages import require_packages
from tetrad.stack.child import ChildState
from tetrad.stack.stack_settings import StackSettings
from tetrad.worker_svc.core.host import size_on_disk, size_text
from tetrad.worker_svc.families.check import may_have_gpu
from tetrad.worker_svc.native.library import NoLibraryError, Target, compile_ahead

Say = Callable[[str], None]
"""Prints one line of progress."""


class StartProgress:
    """Prints the progress of a start on stderr, with the seconds since the start of the command."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()

    def say(self, line: str) -> None:
        """Print one line."""
        print(f"[{time.monotonic() - self._started_at:5.1f} s] {line}", file=sys.stderr, flush=True)

    def on_state(self, name: str, state: ChildState, why: str) -> None:
        """Print the state that a service has reached."""
        if state != "started":
            self.say(f"{name} {state}{f' ({why})' if why else ''}")


def compile_kernels(settings: StackSettings, say: Say) -> None:
    """Compile the kernels if the worker would have to, after a message. Blocks for about 20 s if they must be compiled.

    If they cannot be compiled, a message says so: the worker then runs models through torch, or refuses them
    (cpu_kernels=native).

    Raises:
        Unsupported: necessary packages are missing.
    """
    require_packages("The frontend", ("frontend",))
    worker = settings.worker
    on_cpu = worker.device == "cpu" or (worker.device == "auto" and not may_have_gpu())
    if on_cpu and worker.cpu_kernels != "torch":
        try:
            compile_ahead(lambda target: say(_compiling(target)))
        except OSError as error:
            say(f"The compiled kernels cannot be kept, so they are compiled at each start: {error}")
        except NoLibraryError as error:
            say(_no_kernels(error))


def starting_line(settings: StackSettings) -> str:
    """Return the line to print before the services start: the models and the sizes of their weights."""
    if settings.worker.device == "sim":
        return "Starting the services, with a simulated device"
    sizes = [size_text(size_on_disk(Path(model.engine_core.model))) for model in settings.models]
    loaded = (f"{model.frontend.model} ({size})" for model, size in zip(settings.models, sizes, strict=True))
    return f"Starting the services, loading {', '.join(loaded)}"


def _compiling(target: Target) -> str:
    return f"Compiling the kernels for this processor ({target.name}); this takes about 20 s, once"


def _no_kernels(error: NoLibraryError) -> str:
    text = "NO COMPILED KERNELS: decoding on this CPU will be about 8 times slower."
    return f"{text} Reason: {error}. Install g++ and start again, or install a wheel that has them (`make wheel`)."


def too_slow(timeout_s: float) -> Unavailable:
    """Return the error for a stack that was not ready in time."""
    return Unavailable(
        f"The services were not ready after {timeout_s:g} s; --start-timeout-s gives them longer,"
        " --log-level info shows what they do."
    )


def free_port(host: str, port: int) -> int:
    """Return the port to use: the given one if it is free, or any free one for 0. Called before all slow work."""
    if not 0 <= port <= 65535:
        raise InvalidRequest(f"--port must be between 0 and 65535, got {port}.", field="port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except (OSError, UnicodeError) as error:  # UnicodeError: no name in DNS can be so long
        reason = getattr(error, "strerror", None) or error
        text = f"Cannot listen on {host}:{port}: {reason}. Choose another with --host or --port."
        raise Unavailable(text) from error
