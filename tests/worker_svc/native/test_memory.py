"""Memory of weights: arrays are aligned zeros that do not overlap, and a chunk is freed with its last array."""

import gc
import weakref
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tetrad.worker_svc.native.memory import WeightMemory, aligned_zeros, room_for

SIZES = [1, 63, 64, 65, 4096, 1 << 20, 3 << 20]


@pytest.mark.parametrize("size_bytes", SIZES)
def test_zeros_are_aligned(size_bytes):
    for data in (aligned_zeros(size_bytes), WeightMemory().zeros(size_bytes), WeightMemory(size_bytes).zeros(size_bytes)):
        assert len(data) == size_bytes
        assert data.ctypes.data % 64 == 0
        assert not data.any()


def test_arrays_do_not_overlap_within_and_across_chunks():
    memory = WeightMemory(4 << 20)
    arrays = [memory.zeros(size) for size in SIZES * 3]
    for number, data in enumerate(arrays, 1):
        assert not data.any()
        data[:] = number
    assert all((data == number).all() for number, data in enumerate(arrays, 1))


def test_memory_of_the_right_size_takes_one_chunk():
    memory = WeightMemory(sum(map(room_for, SIZES)))
    addresses = [memory.zeros(size).ctypes.data for size in SIZES]
    assert [after - before for before, after in pairwise(addresses)] == list(map(room_for, SIZES[:-1]))


def chunk_of(data: np.ndarray) -> weakref.ref:
    """Return a reference to the memory that an array is a part of."""
    while data.base is not None and hasattr(data.base, "base"):
        data = data.base
    return weakref.ref(data)


def test_a_chunk_is_freed_with_its_last_array():
    memory = WeightMemory(1 << 20)
    first, second = memory.zeros(1 << 19), memory.zeros(1 << 19)
    chunk = chunk_of(first)
    del first
    gc.collect()
    assert chunk() is not None
    del second
    gc.collect()
    assert chunk() is None


def test_an_array_larger_than_a_chunk_is_freed_while_the_memory_lives():
    """The output layer of a model is often its last and its largest array."""
    memory = WeightMemory(1 << 20)
    large = memory.zeros(3 << 20)
    chunk = chunk_of(large)
    del large
    gc.collect()
    assert chunk() is None
    assert len(memory.zeros(64)) == 64


def test_large_arrays_are_in_huge_pages_where_the_system_has_them():
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("This system has no transparent huge pages.")
    data = WeightMemory().zeros(16 << 20)
    data[:] = 1
    begin, is_inside = data.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, value = line.partition(" ")
        if "-" in name:
            first, last = (int(each, 16) for each in name.split("-"))
            is_inside = first <= begin < last
        elif name == "VmFlags:" and is_inside:
            assert "hg" in value.split()
            return
    pytest.fail(f"No mapping holds address {begin:x}.")
