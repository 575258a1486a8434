"""sentence-transformers' `encode` in float32 with batches of 32, as users call it. See lines.py."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer

from benchmarks.peers.lines import answer, take_stdout

_BATCH = 32


class SentenceTransformers:
    """An engine that computes embeddings; lines.py transports its requests."""

    def __init__(self, path: str) -> None:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self._model = SentenceTransformer(path, device="cpu")

    def embed(self, texts: str, first: str) -> float:
        """Embed all texts of the JSON file `texts`, write the first embedding to the file `first`, and return the seconds."""
        loaded = json.loads(Path(texts).read_text())
        start = time.perf_counter()
        vectors = self._model.encode(loaded, batch_size=_BATCH, show_progress_bar=False)
        seconds = time.perf_counter() - start
        Path(first).write_text(json.dumps(vectors[0].tolist()))
        return seconds


def main() -> None:
    """Load the model in the directory that the first argument names, and answer requests."""
    answers = take_stdout()
    answer(SentenceTransformers(sys.argv[1]), answers)


if __name__ == "__main__":
    main()
