"""`python -m tetrad.tokenizer_svc.speech.speech_process BYTES SECONDS`: preprocesses recordings; see media/child.py."""

from collections.abc import Callable
from typing import Any

from tetrad.services.sandbox.process import serve_frames
from tetrad.tokenizer_svc.media.bare_transformers import with_bare_transformers
from tetrad.tokenizer_svc.media.child import Processor, answers


@with_bare_transformers
def _make(**arguments: Any) -> Processor:
    # Imported here, where failures become answers and torch is hidden.
    from tetrad.tokenizer_svc.speech.pieces import PieceExtractor

    return PieceExtractor(**arguments)


def prepare(hello: bytes) -> Callable[[bytes], bytes]:
    """Return a function that answers questions; `hello` holds the arguments of PieceExtractor."""
    return answers(hello, _make)


if __name__ == "__main__":
    serve_frames(prepare)
