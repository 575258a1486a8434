"""docs/gateways.md as commands: its blocks, with the test's own addresses instead of the page's."""

import re
from pathlib import Path

from tests.e2e.conftest import free_port

ROOT = Path(__file__).parents[2]
TOKENIZER = "/models/tokenizer"
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "docs/gateways.md").read_text())
MODEL = "smollm2-135m-instruct"


def command_of(*words: str) -> str:
    """Return the one command that has all of these words."""
    (found,) = [text for kind, text in BLOCKS if kind == "bash" and all(word in text for word in words)]
    return found.replace("\\\n", " ").strip()


def python_of(word: str) -> str:
    """Return the one program that has this word."""
    (found,) = [text for kind, text in BLOCKS if kind == "python" and word in text]
    return found


def launch_of(program: str, grpc_target: str) -> tuple[str, str]:
    """Return how a gateway is started on ports of its own, for a server of the test's, and its URL."""
    command, port = command_of(f"python -m {program}"), free_port()
    command = re.sub(r"--port \d+", f"--port {port}", command).replace("127.0.0.1:50050", grpc_target)
    return re.sub(r"--prometheus-port \d+", f"--prometheus-port {free_port()}", command), f"http://127.0.0.1:{port}"


def asked_of(page_port: int, url: str, model: str) -> str:
    """Return the question that the page asks a gateway, for one at `url`."""
    command = command_of("curl", f":{page_port}/").replace(f"http://127.0.0.1:{page_port}", url)
    return command.replace(MODEL, model).replace(TOKENIZER, model).replace("curl ", "curl -sS --fail-with-body ")
