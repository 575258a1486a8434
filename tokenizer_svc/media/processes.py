"""MediaProcesses: preprocesses media in processes of their own, and turns their failures into errors of single items.

Called on the event loop. A process that is too slow is replaced for the next item; one that ends, for the same item, once.
"""

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.services.sandbox.sandbox import Sandbox, SandboxDied, SandboxTimeout
from tetrad.tokenizer_svc.media.framing import join_frame, split_frame
from tetrad.tokenizer_svc.media.items import MediaError, ProcessedItem
from tetrad.tokenizer_svc.media.kinds import ProcessLimits


class MediaProcesses:
    """The processes of one modality of a model.

    Args:
        module: the module that they run.
        arguments: arguments of the processor.
        limits: limits of one item.
        modality: "image", "audio" or "video", for errors.
    """

    def __init__(self, module: str, arguments: Mapping[str, Any], limits: ProcessLimits, modality: str) -> None:
        hello = json.dumps(arguments).encode()
        self._lanes = [_Lane(module, hello, limits, modality, number) for number in range(limits.processes)]

    async def describe(self) -> dict[str, Any]:
        """Start the first process, and return the processor's settings. Raises ModelError if there is no such processor."""
        return await self._lanes[0].describe()

    async def process(self, data: bytes, kwargs: Mapping[str, Any]) -> ProcessedItem:
        """Return the tensors of a file. Raises MediaError if it cannot be read or processed."""
        lane = min(self._lanes, key=lambda lane: lane.num_waiting)
        return await lane.process(data, kwargs)

    async def close(self) -> None:
        """Stop the processes; items that are being processed fail."""
        await asyncio.gather(*(lane.close() for lane in self._lanes))


class _Lane:
    """One process, and the thread that waits for it.

    Attributes:
        num_waiting: number of items that are processed or wait; used on the event loop.
    """

    def __init__(self, module: str, hello: bytes, limits: ProcessLimits, modality: str, number: int) -> None:
        self._limits, self._modality = limits, modality
        self._sandbox = Sandbox(module, memory_bytes=limits.memory_bytes, timeout_s=limits.timeout_s, hello=lambda: hello)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"{modality}-{number}")
        self.num_waiting = 0

    async def describe(self) -> dict[str, Any]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._describe)

    async def process(self, data: bytes, kwargs: Mapping[str, Any]) -> ProcessedItem:
        loop = asyncio.get_running_loop()
        work = self._thread.submit(self._process, data, kwargs)
        # Counted until the thread has finished it, even if the caller has left before: the future below ends with its caller.
        self.num_waiting += 1
        work.add_done_callback(lambda _: loop.call_soon_threadsafe(self._note_done))
        return await asyncio.wrap_future(work)

    async def close(self) -> None:
        self._sandbox.interrupt()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._sandbox.close)
        self._thread.shutdown(wait=False)

    def _note_done(self) -> None:
        self.num_waiting -= 1

    def _describe(self) -> dict[str, Any]:
        try:
            header, _ = split_frame(self._sandbox.exchange(b""))
        except (SandboxDied, SandboxTimeout) as error:
            raise ModelError(
                f"The process of the {self._modality} processor ended: {type(error).__name__}.", field="model"
            ) from error
        if "error" in header:
            raise ModelError(f"The model's {self._modality} processor cannot be used: {header['error']}", field="model")
        settings: dict[str, Any] = header["settings"]
        return settings

    def _process(self, data: bytes, kwargs: Mapping[str, Any]) -> ProcessedItem:
        limits = self._limits
        memory = f"{limits.memory_bytes} bytes ({self._modality}_memory_bytes)"
        try:
            header, parts = split_frame(self._answer(join_frame(kwargs, data)))
        except SandboxTimeout:
            raise MediaError(f"it took longer than {limits.timeout_s:g} s ({self._modality}_timeout_s)") from None
        except SandboxDied:
            raise MediaError(f"two processes ended while they read it; the limit is {memory}") from None
        if "exhausted" in header:
            raise MediaError(f"it needs more than {memory}")
        if "error" in header:
            raise MediaError(header["error"])
        columns = zip(header["tensors"], parts, strict=True)
        return ProcessedItem({key: (dtype, tuple(shape), part) for (key, dtype, shape), part in columns})

    def _answer(self, question: bytes) -> bytes:
        """Return the answer of the process, or of the next one: the first may have ended for another reason than the item."""
        try:
            return self._sandbox.exchange(question)
        except SandboxDied:
            return self._sandbox.exchange(question)
