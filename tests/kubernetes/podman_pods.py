"""Podman's pods: its commands, volumes of models, and a question to the stack."""

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from openai import OpenAI


def podman(*arguments: str, check: bool = True) -> str:
    """Run a podman command and return its output; unless `check` is False, fail if it fails."""
    ran = subprocess.run(["podman", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert not check or ran.returncode == 0, ran.stdout
    return ran.stdout


@contextlib.contextmanager
def imported(volume: str, cache: Path, path: Path) -> Iterator[None]:
    """Make a volume with one file or directory of the cache in it."""
    tar = ["tar", "--owner", "10001", "--group", "10001", "-C", cache, "-ch", path.relative_to(cache)]
    podman("volume", "create", volume)
    try:
        with subprocess.Popen(tar, stdout=subprocess.PIPE) as packing:
            subprocess.run(["podman", "volume", "import", volume, "-"], stdin=packing.stdout, check=True)
        yield
    finally:
        podman("volume", "rm", "-f", volume)


def free_port() -> int:
    """Return a TCP port of this machine that no process uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def ask(url: str) -> str:
    """Ask the stack's model a question whose answer is known."""
    client = OpenAI(base_url=url, api_key="none", timeout=120, max_retries=0)
    messages = [{"role": "user", "content": "Name the capital of France."}]
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=16)
    return answer.choices[0].message.content
