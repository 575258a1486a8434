"""`python -m tetrad.tokenizer_svc.media.video.video_process BYTES SECONDS`: preprocesses videos; see ../child.py."""

from collections.abc import Callable
from typing import Any

from tetrad.services.sandbox.process import serve_frames
from tetrad.tokenizer_svc.media.child import Processor, answers


def _make(**arguments: Any) -> Processor:
    # Imported here, where failures become answers: the service runs without PyAV, and then takes no videos.
    from tetrad.tokenizer_svc.media.video.frames_processor import FramesProcessor

    return FramesProcessor(**arguments)


def prepare(hello: bytes) -> Callable[[bytes], bytes]:
    """Return a function that answers questions; `hello` holds the arguments of FramesProcessor."""
    return answers(hello, _make)


if __name__ == "__main__":
    serve_frames(prepare)
