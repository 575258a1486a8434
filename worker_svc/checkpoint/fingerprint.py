"""Fingerprint: tells whether two workers compute equal keys and values for equal prompts.

It is made of the load options, the layout of a block, and samples of the model's files: two fine-tuned models have files of the
same names and sizes. The samples are taken when the files are loaded: later they may change, or be deleted.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

from tetrad.worker_svc.checkpoint.replacement_path import find_replacement
from tetrad.worker_svc.core.device import LoadRequest

_SAMPLE_INTERVAL_BYTES = 1 << 20
"""A fine-tuned model may differ in one layer alone; its matrices have more than this, and the files have just been read."""
_FEWEST_SAMPLES = 16
_SAMPLE_BYTES = 4096
_IRRELEVANT = (
    "model",
    "path",
    "draft_method",
    "draft_path",
    "num_draft_tokens",
    "loras",
    "logits_processors",
    "logprobs_mode",
    "weights",
)
"""Options that do not change keys and values of the base model; adapters are part of the hashes of blocks."""
_CONFIG = "config.json"
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth", _CONFIG)


def fingerprint(request: LoadRequest, samples: bytes, layout: Iterable[object]) -> bytes:
    """Return 32 bytes that are equal for models with equal files and options, and for equal layouts.

    Args:
        request: the loaded model.
        samples: those of its files, see `sample_files`.
        layout: values that describe the content of a block.
    """
    options = {each.name: getattr(request, each.name) for each in fields(request) if each.name not in _IRRELEVANT}
    return hashlib.sha256(repr((options, *layout)).encode() + samples).digest()


def sample_files(request: LoadRequest) -> bytes:
    """Return a hash of samples of the files that a request loads, 32 bytes."""
    found = hashlib.sha256()
    for file in _files_of(request):
        if file.name.endswith(_WEIGHTS):
            for part in _samples(file):
                found.update(part)
    return found.digest()


def _files_of(request: LoadRequest) -> list[Path]:
    """Return the files that may change results, sorted by name; an update has other weights with the model's own config."""
    path = request.path if request.weights is None else find_replacement(request.weights.path)
    if path.is_file():
        return [path]
    found = {file.name: file for file in path.iterdir()}
    if path != request.path:
        found[_CONFIG] = request.path / _CONFIG
    return [found[name] for name in sorted(found)]


def _samples(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    num_samples = max(_FEWEST_SAMPLES, size // _SAMPLE_INTERVAL_BYTES)
    yield str(size).encode()
    with file.open("rb") as opened:
        for number in range(num_samples):
            opened.seek(number * max(size - _SAMPLE_BYTES, 0) // (num_samples - 1))
            yield opened.read(_SAMPLE_BYTES)
