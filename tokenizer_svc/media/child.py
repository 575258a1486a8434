"""Child: the shared part of the processes that preprocess media, one item at a time.

An item is untrusted input to native code. It is decoded in a process of its own, which the parent kills after a time limit and
whose memory the system limits. Questions and answers are frames of a JSON header and bytes; see framing.py.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tetrad.tokenizer_svc.media.embeds import EMBEDS
from tetrad.tokenizer_svc.media.embeds_reading import read_embeds
from tetrad.tokenizer_svc.media.framing import join_frame, split_frame
from tetrad.tokenizer_svc.media.items import MediaError

_NICENESS = 5

Tensors = dict[str, NDArray[np.generic]]


class Processor(Protocol):
    """A model's processor of one modality."""

    def settings(self) -> dict[str, Any]:
        """Return the processor's settings with its defaults, as JSON values."""

    def process(self, data: bytes, kwargs: Mapping[str, Any]) -> Tensors:
        """Return the tensors of a file by name. Raises MediaError if the file or its settings are refused."""


def answers(hello: bytes, make: Callable[..., Processor]) -> Callable[[bytes], bytes]:
    """Return a function that answers questions: an empty one with the processor's settings, others with an item's tensors.

    A processor that cannot be made is the answer to all questions, so that the parent has the reason.

    Args:
        hello: arguments of `make`, a JSON object.
        make: imports and makes the processor.
    """
    os.nice(_NICENESS)  # texts are encoded first on a busy machine
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1", "HF_HUB_OFFLINE": "1"}
    # transformers imports torch if there is one, which takes seconds and 340 MB: processors on numpy do not need it.
    sys.modules["torch"] = sys.modules["torchvision"] = None  # type: ignore[assignment]
    try:
        processor = make(**json.loads(hello))
    except Exception as error:  # noqa: BLE001 - a processor's settings may be anything, and packages may be missing
        reason = f"{type(error).__name__}: {error}"
        return lambda _: join_frame({"error": reason})

    def answer(question: bytes) -> bytes:
        if not question:
            return join_frame({"settings": processor.settings()})
        kwargs, [data] = split_frame(question)
        try:
            tensors = read_embeds(data, **kwargs[EMBEDS]) if EMBEDS in kwargs else processor.process(data, kwargs)
        except MediaError as error:
            return join_frame({"error": str(error)})
        except MemoryError:
            return join_frame({"exhausted": True})
        columns = [[name, value.dtype.name, value.shape] for name, value in tensors.items()]
        return join_frame({"tensors": columns}, *(value.tobytes() for value in tensors.values()))

    return answer
