"""Malformed GGUF headers. Valid files are tested where they are used."""

import os
import struct
import tracemalloc

import pytest

from tetrad.services.errors import ModelError
from tetrad.services.models import gguf_container
from tetrad.services.models.gguf_container import read_gguf_header

UINT8, UINT32, STRING, ARRAY = 0, 4, 8, 9


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: bytes = b"w", shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def header(
    *pairs: bytes, tensors: tuple[bytes, ...] = (), num_pairs: int | None = None, num_tensors: int | None = None
) -> bytes:
    counts = (len(tensors) if num_tensors is None else num_tensors, len(pairs) if num_pairs is None else num_pairs)
    return b"GGUF" + struct.pack("<IQQ", 3, *counts) + b"".join(pairs) + b"".join(tensors)


ALIGNED = pair(b"general.alignment", UINT32, struct.pack("<I", 8))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header(num_pairs=2**60), "claims 1152921504606846976 metadata keys"),
        (header(num_tensors=2**60), "claims 1152921504606846976 tensors"),
        (header(num_pairs=60_000), "past its end"),
        (header(pair(b"k", ARRAY, struct.pack("<IQ", UINT8, 2**60))), "more than 8388608 values"),
        (header(pair(b"k", ARRAY, struct.pack("<IQ", STRING, 2**60))), "more than 8388608 values"),
        (header(pair(b"k", ARRAY, struct.pack("<IQ", UINT8, 8 << 20))), "past its end"),
        (header(pair(b"k", ARRAY, struct.pack("<IQIQ", ARRAY, 1, ARRAY, 1))), "no value type 9"),
        (header(pair(b"k", STRING, struct.pack("<Q", 2**63))), "bytes for one text"),
        (header(pair(b"k" * 70_000, STRING, text(b""))), "bytes for one text"),
        (header(ALIGNED, ALIGNED), "'general.alignment' twice"),
        (header(pair(b"general.alignment", UINT32, struct.pack("<I", 0))), "power of two"),
        (header(pair(b"general.alignment", UINT32, struct.pack("<I", 12))), "power of two"),
        (header(pair(b"general.alignment", STRING, text(b"8"))), "power of two"),
        (header(tensors=(tensor(shape=(1,) * 5),)), "claims 5 dimensions"),
        (header(tensors=(text(b"w") + struct.pack("<I", 2**32 - 1),)), "claims 4294967295 dimensions"),
        (header(tensors=(tensor(), tensor())) + bytes(64), "two tensors of one name"),
        (header(tensors=(tensor(offset=2**63),)), "truncated"),
        (b"", "empty file"),
    ],
)
def test_a_claim_that_the_file_does_not_keep_is_refused_before_memory_is_taken(tmp_path, data, reason):
    path = tmp_path / "m.gguf"
    path.write_bytes(data)

    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=reason) as caught:
            read_gguf_header(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert "\n" not in caught.value.message
    assert peak < 1 << 20


def test_many_arrays_count_together(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_container, "_MAX_ARRAY_VALUES", 10)
    path = tmp_path / "m.gguf"
    path.write_bytes(header(*(pair(key, ARRAY, struct.pack("<IQ6B", UINT8, 6, *range(6))) for key in (b"a", b"b"))))

    with pytest.raises(ModelError, match="more than 10 values"):
        read_gguf_header(path)


def test_a_header_longer_than_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_container, "_MAX_HEADER_BYTES", 100)
    path = tmp_path / "m.gguf"
    path.write_bytes(header(pair(b"k", STRING, text(b"x" * 90))))

    with pytest.raises(ModelError, match="longer than 100 bytes"):
        read_gguf_header(path)


def test_offsets_follow_the_alignment(tmp_path):
    path = tmp_path / "m.gguf"
    data = header(ALIGNED, tensors=(tensor(b"a"), tensor(b"b", (2, 3), 1, 16)))
    path.write_bytes(data + bytes(64))

    tensors = read_gguf_header(path).tensors

    start = -(-len(data) // 8) * 8
    assert [(each.name, each.shape, each.kind, each.offset) for each in tensors] == [
        ("a", (4,), 0, start),
        ("b", (2, 3), 1, start + 16),
    ]


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path):
    os.mkfifo(tmp_path / "m.gguf")

    with pytest.raises(ModelError, match="no regular file"):
        read_gguf_header(tmp_path / "m.gguf")
