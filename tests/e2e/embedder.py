"""A server of a tiny sentence encoder, and texts for it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.e2e.conftest import Server
from tests.worker_svc.pooling.checkpoints import save_sentence_encoder

TEXTS = ["w0 w1 w2", "w7", "w0 w1 w2 w3 w4 w5 w6 w7 w8 w9"]


def start_embedder(
    directory: Path, start: Callable[..., Server], *flags: str
) -> tuple[Server, Callable[[str], npt.NDArray[np.float32]]]:
    """Return a server of a tiny sentence-transformers model (mean, normalised), and the embedding that transformers makes.

    The model reads 32 tokens; inputs of up to 64 are embedded in parts.
    """
    embed = save_sentence_encoder(directory, max_seq_length=32, matryoshka_dimensions=[8, 16])
    (directory / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "w90 w91 "}}))
    long = json.dumps({"enable_chunked_processing": True, "max_embed_len": 64})
    options = ("--device", "cpu", "--served-model-name", "tiny", "--pooler-config", long)
    return start(str(directory), *options, *flags), embed
