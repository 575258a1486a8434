"""ImageProcesses: preprocesses images in processes of their own, and turns their failures into errors of single images.

Called on the event loop. A process that is too slow is replaced for the next image; one that ends, for the same image, once.
"""

import asyncio
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tetrad.services.errors import ModelError
from tetrad.services.sandbox.sandbox import Sandbox, SandboxDied, SandboxTimeout
from tetrad.tokenizer_svc.media.framing import join_frame, split_frame
from tetrad.tokenizer_svc.media.images.families.model import ProcessedImage

_MODULE = "tetrad.tokenizer_svc.media.image_process"


class ImageFailed(Exception):
    """An image cannot be read or processed; the text is the reason. It becomes InvalidRequest."""


@dataclass(frozen=True)
class ImageLimits:
    """Limits of one image, and the number of processes."""

    processes: int = 1
    timeout_s: float = 20.0
    memory_bytes: int = 2 << 30
    max_pixels: int = 178_956_970


class ImageProcesses:
    """The processes of one model.

    Args:
        processor: arguments of PilProcessor.
        limits: limits of one image.
    """

    def __init__(self, processor: Mapping[str, Any], limits: ImageLimits) -> None:
        hello = json.dumps({**processor, "max_pixels": limits.max_pixels}).encode()
        self._lanes = [_Lane(hello, limits, f"image-{number}") for number in range(limits.processes)]

    async def describe(self) -> dict[str, Any]:
        """Start the first process, and return the processor's settings. Raises ModelError if there is no such processor."""
        return await self._lanes[0].describe()

    async def process(self, data: bytes, kwargs: Mapping[str, Any]) -> ProcessedImage:
        """Return the tensors of an image file. Raises ImageFailed if it cannot be read or processed."""
        lane = min(self._lanes, key=lambda lane: lane.num_waiting)
        return await lane.process(data, kwargs)

    async def close(self) -> None:
        """Stop the processes; images that are being processed fail."""
        await asyncio.gather(*(lane.close() for lane in self._lanes))


class _Lane:
    """One process, and the thread that waits for it.

    Attributes:
        num_waiting: number of images that are processed or wait; used on the event loop.
    """

    def __init__(self, hello: bytes, limits: ImageLimits, name: str) -> None:
        self._limits = limits
        self._sandbox = Sandbox(_MODULE, memory_bytes=limits.memory_bytes, timeout_s=limits.timeout_s, hello=lambda: hello)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.num_waiting = 0

    async def describe(self) -> dict[str, Any]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._describe)

    async def process(self, data: bytes, kwargs: Mapping[str, Any]) -> ProcessedImage:
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
            raise ModelError(f"The process of the image processor ended: {type(error).__name__}.", field="model") from error
        if "error" in header:
            raise ModelError(f"The model's image processor cannot be used: {header['error']}", field="model")
        settings: dict[str, Any] = header["settings"]
        return settings

    def _process(self, data: bytes, kwargs: Mapping[str, Any]) -> ProcessedImage:
        limits = self._limits
        try:
            header, parts = split_frame(self._answer(join_frame(kwargs, data)))
        except SandboxTimeout:
            raise ImageFailed(f"it took longer than {limits.timeout_s:g} s (image_timeout_s)") from None
        except SandboxDied:
            text = f"two processes ended while they read it; the limit is {limits.memory_bytes} bytes (image_memory_bytes)"
            raise ImageFailed(text) from None
        if "exhausted" in header:
            raise ImageFailed(f"it needs more than {limits.memory_bytes} bytes (image_memory_bytes)")
        if "error" in header:
            raise ImageFailed(header["error"])
        columns = zip(header["tensors"], parts, strict=True)
        return ProcessedImage({key: (dtype, tuple(shape), part) for (key, dtype, shape), part in columns})

    def _answer(self, question: bytes) -> bytes:
        """Return the answer of the process, or of the next one: the first may have ended for another reason than the image."""
        try:
            return self._sandbox.exchange(question)
        except SandboxDied:
            return self._sandbox.exchange(question)
