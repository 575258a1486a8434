"""Untrusted files: any bytes are a model or one line with the reason, in bounded time and memory."""

import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import note
from hypothesis import strategies as st

from tests.fuzz.bounds import bounded
from tests.fuzz.model_bytes import SHAPES, directory_files, json_mutations, mutations, write_gguf
from tetrad.services.errors import ModelError, NotFound
from tetrad.tokenizer_svc.loading.load import load_tokenizer
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.devices.cpu import CpuDevice

# Strategies over whole files have long names, which only a failure would show.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

EXAMPLE_SECONDS = 5
HEADER_BYTES = 9_000


@dataclass(frozen=True, repr=False)
class Hostile:
    """A file's bytes; written down where they can be found again when an example fails."""

    data: bytes

    def __repr__(self) -> str:
        path = Path(tempfile.gettempdir()) / f"tetrad-fuzz-{hashlib.sha256(self.data).hexdigest()[:16]}"
        path.write_bytes(self.data)
        return f"Hostile(bytes of {path})"


@pytest.fixture(scope="module")
def cpu() -> CpuDevice:
    device = CpuDevice(WorkerSettings(threads=1))
    device.set_up()
    return device


@pytest.fixture
def load(cpu) -> Callable[[Path], str]:
    """Return a loader of a model for the worker, and of its tokenizer; gives what became of each."""

    def load_both(path: Path) -> str:
        with bounded(EXAMPLE_SECONDS):
            model = outcome(lambda: cpu.load_model(LoadRequest("m", path), lambda *_: None))
            tokenizer = outcome(lambda: load_tokenizer(str(path)))
        return f"{model} {tokenizer}"

    return load_both


def outcome(load: Callable[[], object]) -> str:
    """Return "whole" or "refused"; what is neither a model nor one short line is an error."""
    try:
        load()
    except (ModelError, NotFound) as error:
        assert "\n" not in error.message, error.message
        assert 0 < len(error.message) < 1500, error.message
        return "refused"
    return "whole"


def test_any_gguf_file_is_a_model_or_one_line(tmp_path, fuzz, load):
    path = tmp_path / "model.gguf"
    whole = write_gguf(path)
    assert load(path) == "whole whole"
    seen: dict[str, int] = {}

    def check_gguf(hostile: Hostile) -> None:
        path.write_bytes(hostile.data)
        result = load(path)
        seen[result] = seen.get(result, 0) + 1

    number = fuzz(check_gguf, mutations(whole, HEADER_BYTES).map(Hostile), examples=300)

    # The changes are small enough that some files are still good for one service or both.
    assert seen["refused refused"] > number // 10
    assert sum(count for result, count in seen.items() if "whole" in result) > number // 150, seen


def test_any_gguf_header_alone_is_refused_or_read(tmp_path, fuzz, load):
    """Bytes that nobody wrote as a file, behind the four letters."""
    path = tmp_path / "model.gguf"

    def check_gguf_noise(hostile: Hostile) -> None:
        path.write_bytes(hostile.data)
        assert "refused" in load(path)

    heads = st.sampled_from([b"", b"GGUF", b"GGUF\3\0\0\0", b"GGUF\3\0\0\0" + bytes(8), b"GGUF\3\0\0\0" + bytes(16)])
    fuzz(check_gguf_noise, st.builds(lambda head, rest: Hostile(head + rest), heads, st.binary(max_size=200)), examples=100)


def test_any_safetensors_file_is_a_model_or_one_line(tmp_path, fuzz, load):
    files = write_directory(tmp_path)
    assert load(tmp_path) == "whole whole"
    path = tmp_path / "model-2.safetensors"

    def check_safetensors(hostile: Hostile) -> None:
        path.write_bytes(hostile.data)
        load(tmp_path)

    fuzz(check_safetensors, mutations(files[path.name], 900).map(Hostile), examples=100)


@pytest.mark.parametrize("is_archive", [True, False])
def test_any_pytorch_file_is_a_model_or_one_line(tmp_path, fuzz, load, is_archive):
    write_directory(tmp_path)
    tensors = {name: torch.ones(shape) for name, shape in SHAPES.items()}
    for path in tmp_path.glob("*.safetensors*"):
        path.unlink()
    path = tmp_path / "pytorch_model.bin"
    torch.save(tensors, path, _use_new_zipfile_serialization=is_archive)
    whole = path.read_bytes()
    assert load(tmp_path) == "whole whole"

    def check_pytorch(hostile: Hostile) -> None:
        path.write_bytes(hostile.data)
        load(tmp_path)

    check_pytorch.__name__ += "_archive" if is_archive else "_before_1_6"
    fuzz(check_pytorch, mutations(whole, 2500).map(Hostile), examples=100)


@pytest.mark.parametrize(
    "name",
    ["config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"],
)
def test_any_json_of_a_directory_is_a_model_or_one_line(tmp_path, fuzz, load, name):
    files = write_directory(tmp_path)
    assert load(tmp_path) == "whole whole"

    def check_json(hostile: Hostile) -> None:
        note(hostile.data[:2000].decode("utf-8", "replace"))
        (tmp_path / name).write_bytes(hostile.data)
        load(tmp_path)

    check_json.__name__ = f"check_{name}"
    fuzz(check_json, json_mutations(files[name]).map(Hostile), examples=80)


def write_directory(directory: Path) -> dict[str, bytes]:
    files = directory_files()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return files
