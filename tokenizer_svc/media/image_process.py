"""`python -m tetrad.tokenizer_svc.media.image_process BYTES SECONDS`: preprocesses images, one at a time.

An image is untrusted input to native code. It is decoded in this process, which the parent kills after a time limit and whose
memory the system limits. Questions and answers are frames of a JSON header and bytes; see framing.py.
"""

import json
import os
import sys
from collections.abc import Callable

from tetrad.services.sandbox.process import serve_frames
from tetrad.tokenizer_svc.media.framing import join_frame, split_frame

_NICENESS = 5


def prepare(hello: bytes) -> Callable[[bytes], bytes]:
    """Return a function that answers questions: an empty one with the processor's settings, others with an image's tensors.

    `hello` holds the processor's settings and the limit of pixels. A processor that cannot be made is the answer to all
    questions, so that the parent has the reason.
    """
    os.nice(_NICENESS)  # texts are encoded first on a busy machine
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1", "HF_HUB_OFFLINE": "1"}
    # transformers imports torch if there is one, which takes seconds and 340 MB: its processors on Pillow do not need it.
    sys.modules["torch"] = sys.modules["torchvision"] = None  # type: ignore[assignment]
    settings = json.loads(hello)
    max_pixels = settings.pop("max_pixels")
    try:
        from tetrad.tokenizer_svc.media.images.pil_processor import PilProcessor

        processor = PilProcessor(**settings)
    except Exception as error:  # noqa: BLE001 - a processor's settings may be anything, and packages may be missing
        reason = f"{type(error).__name__}: {error}"
        return lambda _: join_frame({"error": reason})

    from tetrad.tokenizer_svc.media.images.decoding import ImageError, decode_image

    def answer(question: bytes) -> bytes:
        if not question:
            return join_frame({"settings": processor.settings()})
        kwargs, [data] = split_frame(question)
        try:
            tensors = processor.process(decode_image(data, max_pixels=max_pixels), kwargs)
        except ImageError as error:
            return join_frame({"error": str(error)})
        except MemoryError:
            return join_frame({"exhausted": True})
        columns = [[name, value.dtype.name, value.shape] for name, value in tensors.items()]
        return join_frame({"tensors": columns}, *(value.tobytes() for value in tensors.values()))

    return answer


if __name__ == "__main__":
    serve_frames(prepare)
