"""Images go to the process with the fewest others, whether or not their callers still wait."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from tetrad.services.errors import Unavailable
from tetrad.services.sandbox.sandbox import SandboxDied
from tetrad.tokenizer_svc.media import processes
from tetrad.tokenizer_svc.media.framing import join_frame
from tetrad.tokenizer_svc.media.items import MediaError
from tetrad.tokenizer_svc.media.kinds import ProcessLimits
from tetrad.tokenizer_svc.media.processes import MediaProcesses


class FakeSandbox:
    """Answers when `end` is set; `made` are all of them."""

    made: list["FakeSandbox"]

    def __init__(self, module: str, **options: object) -> None:
        self.num_exchanges = self.num_deaths = 0
        self.end = threading.Event()
        FakeSandbox.made.append(self)

    def exchange(self, contents: bytes) -> bytes:
        self.num_exchanges += 1
        if self.num_deaths:
            self.num_deaths -= 1
            raise SandboxDied
        if not self.end.wait(timeout=30):
            raise Unavailable("The test has not ended it.")
        return join_frame({"tensors": []})

    def interrupt(self) -> None:
        self.end.set()

    def close(self) -> None:
        self.end.set()


@pytest.fixture(autouse=True)
def _fake_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeSandbox.made = []
    monkeypatch.setattr(processes, "Sandbox", FakeSandbox)


async def test_an_image_whose_caller_has_left_still_occupies_its_process() -> None:
    settings: Mapping[str, Any] = {}
    pool = MediaProcesses("module", settings, ProcessLimits(processes=2), "image")
    first, second = FakeSandbox.made
    left = asyncio.ensure_future(pool.process(b"slow", {}))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait([left])
    second.end.set()

    await pool.process(b"other", {})
    await pool.process(b"third", {})

    assert (first.num_exchanges, second.num_exchanges) == (1, 2)
    await pool.close()


@pytest.mark.parametrize("num_deaths", [1, 2])
async def test_an_image_fails_only_if_two_processes_end_over_it(num_deaths: int) -> None:
    pool = MediaProcesses("module", {}, ProcessLimits(processes=1), "image")
    [sandbox] = FakeSandbox.made
    sandbox.num_deaths = num_deaths
    sandbox.end.set()

    reading = pool.process(b"image", {})
    if num_deaths == 1:
        assert (await reading).size_bytes == 0
    else:
        with pytest.raises(MediaError, match=r"two processes ended while they read it.*\(image_memory_bytes\)"):
            await reading

    await pool.close()
