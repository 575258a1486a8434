"""docs/gateways.md as commands: its blocks, with the test's own addresses instead of the page's."""

import re

from benchmarks.stack import free_port
from tests.documents import Page

PAGE = Page.of("docs/gateways.md")
TOKENIZER = "/models/tokenizer"
MODEL = "smollm2-135m-instruct"


def command_of(*words: str) -> str:
    """Return the one command that has all of these words."""
    return PAGE.block(*words).replace("\\\n", " ").strip()


def launch_of(program: str, grpc_target: str) -> tuple[str, str]:
    """Return how a gateway is started on ports of its own, for a server of the test's, and its URL."""
    command, port = command_of(f"python -m {program}"), free_port()
    command = re.sub(r"--port \d+", f"--port {port}", command).replace("127.0.0.1:50050", grpc_target)
    return re.sub(r"--prometheus-port \d+", f"--prometheus-port {free_port()}", command), f"http://127.0.0.1:{port}"


def asked_of(page_port: int, url: str, model: str) -> str:
    """Return the question that the page asks a gateway, for one at `url`."""
    command = command_of("curl", f":{page_port}/").replace(f"http://127.0.0.1:{page_port}", url)
    return command.replace(MODEL, model).replace(TOKENIZER, model).replace("curl ", "curl -sS --fail-with-body ")
