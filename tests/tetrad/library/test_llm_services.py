"""The services of a program: the engine cores that it operates through LLM(target=...), and an interrupted start of its own."""

import subprocess
import sys

import pytest

from tetrad import LLM
from tetrad.library.llm_services import RemoteServices
from tetrad.services.errors import InvalidRequest

HANGS = """
import asyncio, os, signal, threading
from tetrad import LLM, AsyncEngineArgs, AsyncLLMEngine
from tetrad.library.engine_args import EngineArgs

def download(self, **_):
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()

EngineArgs.stack_settings = download
try:
    {start}
except KeyboardInterrupt:
    print("interrupted")
"""
TARGET = "tokenizer.example:50051,engine.example:50052"


async def test_addresses_alone_operate_no_engine_core():
    """The default admin port of this machine may be another engine's, which `sleep` would put to sleep."""
    settings = await RemoteServices(TARGET).start()

    assert settings.engine_targets == ("engine.example:50052",)
    assert settings.engine_admin_targets == ()


async def test_the_admin_ports_of_a_target_are_given_with_it():
    settings = await RemoteServices(TARGET, "engine.example:50054, 10.0.0.7:50054").start()

    assert settings.engine_admin_targets == ("engine.example:50054", "10.0.0.7:50054")


def test_an_admin_target_without_a_target_is_refused():
    with pytest.raises(InvalidRequest, match="admin_target belongs to target="):
        LLM(admin_target="engine.example:50054")


@pytest.mark.parametrize(
    "start",
    [
        'LLM(device="sim")',
        'asyncio.run(AsyncLLMEngine.from_engine_args(AsyncEngineArgs(device="sim")).check_health())',
    ],
    ids=["LLM", "AsyncLLM"],
)
def test_an_interrupted_program_does_not_wait_for_a_download(start):
    command = [sys.executable, "-c", HANGS.format(start=start)]

    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (result.returncode, result.stdout) == (0, "interrupted\n"), result.stderr
