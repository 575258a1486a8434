"""`tetrad profile`: profiles the services of a running server for some seconds, and copies one of the traces."""

import math
import shutil
import time
from pathlib import Path

from tetrad.cli.http_client import HttpClient
from tetrad.cli.options import new_parser
from tetrad.cli.sampling_options import add_server_address
from tetrad.cli.termination import exit_at_sigterm
from tetrad.services.errors import InvalidRequest, NotFound, Unavailable

_WORKER = "worker"
_SERVICES = ("frontend", "engine-core", _WORKER)


def run(arguments: list[str]) -> int:
    """Record a profile, and print the paths of the traces."""
    parser = new_parser(
        "profile", "Record a profile of a running server's services, for Perfetto (ui.perfetto.dev) or chrome://tracing."
    )
    add_server_address(parser)
    parser.add_argument("--seconds", type=float, default=5.0, metavar="X", help="Length of the recording, in seconds.")
    text = "Service whose trace --output copies. Unset: the worker."
    parser.add_argument("--service", choices=_SERVICES, default=None, help=text)
    text = "Copy the service's trace to this file; the server must run on this machine. Unset: print the paths of all traces."
    parser.add_argument("-o", "--output", type=Path, default=None, metavar="PATH", help=text)
    options = parser.parse_args(arguments)
    if not 0 <= options.seconds < math.inf:
        raise InvalidRequest(f"--seconds must be at least 0 and finite, got {options.seconds:g}.", field="seconds")
    if options.service is not None and options.output is None:
        raise InvalidRequest("--service says whose trace --output copies: give --output, too.", field="service")
    if options.output is not None:
        _check_target(options.output)
    with HttpClient(options.url, api_key=options.api_key, ca_file=options.ca_file) as client:
        client.post("/start_profile")
        try:
            with exit_at_sigterm():
                time.sleep(options.seconds)
        finally:
            stopped = client.post("/stop_profile")
    try:
        paths = [Path(path) for path in stopped["paths"]]
    except (LookupError, TypeError):
        raise Unavailable(f"The server at {options.url} answers /stop_profile with no paths. Is it a Tetrad server?") from None
    try:
        if options.output is not None:
            _copy(options.service or _WORKER, paths, options.output)
            print(f"Wrote {options.output}; open it at https://ui.perfetto.dev. All traces of this profile:")
    finally:
        print("\n".join(map(str, paths)))
    return 0


def _check_target(target: Path) -> None:
    """Raise InvalidRequest if no trace can be written there: known after the recording, it would come too late."""
    if target.is_dir():
        raise InvalidRequest(f"--output {target} is a directory; give a file.", field="output")
    if not target.parent.is_dir():
        raise InvalidRequest(f"--output {target} cannot be written: there is no directory {target.parent}.", field="output")


def _copy(service: str, paths: list[Path], target: Path) -> None:
    source = next((path for path in paths if f"-{service}-" in path.name), None)
    if source is None:
        raise NotFound(f"This profile has no trace of a {service}.")
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError as error:
        raise NotFound(f"{error.filename} is not on this machine.") from error
    except OSError as error:
        raise InvalidRequest(f"{target} cannot be written: {error.strerror or error}.", field="output") from error
