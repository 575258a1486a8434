"""Ctrl-C ends a coroutine, even if an awaited call swallowed the cancellation."""

import asyncio
import contextlib
import os
import signal

import pytest

from tetrad.cli.interruptible import run_interruptible


async def interrupted(*, forgets: bool) -> str:
    with contextlib.suppress(asyncio.CancelledError) if forgets else contextlib.nullcontext():
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
    return "an answer that came at the same moment"


@pytest.mark.parametrize("forgets", [True, False])
def test_ctrl_c_is_not_lost(forgets):
    with pytest.raises(KeyboardInterrupt):
        run_interruptible(interrupted(forgets=forgets))


def test_a_result_is_returned():
    assert run_interruptible(asyncio.sleep(0, "result")) == "result"
