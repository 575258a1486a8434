"""The unread stderr of a stack: it fills, and all lines arrive once it is read again."""

import asyncio
import subprocess
import sys

from tests.chaos.stderr import Stderr

NUM_LINES = 5000
PROGRAM = f"""
import sys

for number in range({NUM_LINES}):
    sys.stderr.write(f"line {{number:04}}\\n")
print("written", flush=True)
"""


async def test_a_blocked_pipe_holds_the_writer_up_and_loses_nothing(tmp_path):
    stderr = Stderr(tmp_path / "log")
    with stderr.pipe() as write_end:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, stdout=subprocess.PIPE, stderr=write_end)
    blocking = asyncio.create_task(stderr.block(60))
    await asyncio.sleep(0)

    async with stderr:
        written = asyncio.create_task(process.stdout.readline())
        held_up, _ = await asyncio.wait({written}, timeout=0.3)
        blocking.cancel()
        assert await written == b"written\n"
        await process.wait()

    assert not held_up
    assert (tmp_path / "log").read_text().splitlines() == [f"line {number:04}" for number in range(NUM_LINES)]
