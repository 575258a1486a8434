"""vLLM's own server, started as users start it on a CPU; in float32 and eager mode, which is its fastest form here."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.installed import VLLM, home, python_of
from benchmarks.processes import ProcessTree
from benchmarks.stack import MODEL, Stack, free_port, wait_until_healthy

_START_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 30.0
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@contextlib.contextmanager
def vllm_server(model: str, *flags: str, max_model_len: int = 8192) -> Iterator[Stack]:
    """Serve a model of the peers' directory under the name MODEL; the server's log is printed if it does not start.

    Args:
        model: name of the model's directory.
        flags: further flags of the server.
        max_model_len: maximum length of a sequence in tokens.
    """
    port = free_port()
    command = [
        str(python_of("vllm")), str(Path(__file__).with_name("vllm_cli.py")), "serve", str(home() / model),
        "--dtype", "float32", "--enforce-eager", "--gpu-memory-utilization", "0.3", "--max-model-len", str(max_model_len),
        "--port", str(port), "--host", "127.0.0.1", "--served-model-name", MODEL, *flags,
    ]  # fmt: skip
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **_ENVIRONMENT}, start_new_session=True)
        url = f"http://127.0.0.1:{port}"
        try:
            try:
                wait_until_healthy(url, process, _START_TIMEOUT_S)
            except RuntimeError as error:
                log.seek(0)
                raise RuntimeError(f"{VLLM}: {error}\n{log.read()[-3000:].decode(errors='replace')}") from None
            yield Stack(url, "", process.pid, 0.0)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and all processes it started, which are one process group."""
    children = ProcessTree(process.pid).by_service() if process.poll() is None else {}
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_TIMEOUT_S)
    for child in (each for found in children.values() for each in found):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if child.is_running():
                child.kill()
    process.wait(_STOP_TIMEOUT_S)
