"""Sums in shared memory: the same bits on every rank, the loss of a rank, and gloo where memory cannot be shared."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch

from tests.worker_svc.native.native_programs import NO_HEADS, RUNNABLE, team_of
from tests.worker_svc.ranks.rank_process import rank_process
from tetrad.worker_svc.core.ranks import GroupPlace, Shard
from tetrad.worker_svc.layers.collectives import GroupSums
from tetrad.worker_svc.layers.rendezvous import Rendezvous
from tetrad.worker_svc.native import shared_memory
from tetrad.worker_svc.native.library import best_target, load_library
from tetrad.worker_svc.native.program import Tokens
from tetrad.worker_svc.native.program_builder import ProgramBuilder
from tetrad.worker_svc.native.program_sums import RankSums
from tetrad.worker_svc.native.shared_memory import SharedMemory
from tetrad.worker_svc.native.shared_sums import SharedSums, SumsOfMachine
from tetrad.worker_svc.native.weights import pack_float

T = TypeVar("T")
CHUNK = 64 * 1024
"""Floats of a buffer, as in shared_sums.h."""


@contextmanager
def opened(directory: Path, size: int, timeout_s: float = 10.0) -> Iterator[list]:
    """Let the ranks of a group meet, each on a thread; give the sums of each."""
    library, addresses = load_library(best_target()), [f"unix:{directory}/{rank}" for rank in range(size)]

    def join(rank: int) -> object:
        shard = Shard(rank, size)
        met = Rendezvous(GroupPlace(shard, 1, addresses, 10.0))
        return SumsOfMachine(library)(met, "sums", met.connect("sums", rank, size, 10.0), shard, timeout_s)

    yield on_all(range(size), join)


def on_all(values, call: Callable[..., T]) -> list[T]:
    with ThreadPoolExecutor(len(values)) as threads:
        return list(threads.map(call, values))


@pytest.mark.parametrize("size", [2, 3])
def test_sums_are_made_in_the_order_of_the_ranks_on_every_rank(socket_directory, size):
    """Also of more values than a buffer has, and of many sums behind each other."""
    shapes = [(1,), (32, 576), (CHUNK + 7,), (3, CHUNK)] + [(5,)] * 50
    generator = torch.Generator().manual_seed(1)
    values = [[torch.randn(shape, generator=generator) * 10**rank for shape in shapes] for rank in range(size)]
    expected = [sum_in_order(each) for each in zip(*values, strict=True)]

    with opened(socket_directory, size) as ranks:
        assert all(isinstance(rank, SharedSums) for rank in ranks)
        found = on_all(range(size), lambda rank: [ranks[rank].sum_(x.clone()) for x in values[rank]])

    for sums in found:
        assert all(torch.equal(one, other) for one, other in zip(sums, expected, strict=True))


def sum_in_order(parts) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


@pytest.mark.parametrize("is_shared", [True, False], ids=["shared memory", "gloo"])
def test_the_first_rank_gathers_the_tensors_of_all_ranks(socket_directory, monkeypatch, is_shared):
    """Also of more bytes than a buffer has, of numbers of 8 bytes, and between sums."""
    if not is_shared:
        monkeypatch.setattr(shared_memory, "_attached", lambda _: None)
    shapes = [(2, 3), (3, CHUNK), (1,)]
    values = [[torch.randn(shape, dtype=torch.float64) for shape in shapes] for _ in range(3)]

    def exchange(rank: int) -> list[list[torch.Tensor]]:
        found = []
        for x in values[rank]:
            found.append(ranks[rank].gather(x))
            assert ranks[rank].sum_(torch.ones(7)).tolist() == [3.0] * 7
        return found

    with opened(socket_directory, 3) as ranks:
        first, *others = on_all(range(3), exchange)

    for number, parts in enumerate(first):
        assert all(torch.equal(part, values[rank][number]) for rank, part in enumerate(parts))
    assert others == [[[], [], []]] * 2


def test_a_rank_that_leaves_ends_the_wait_of_the_others(socket_directory):
    with opened(socket_directory, 2) as (first, second):
        second.leave()
        with pytest.raises(RuntimeError, match="A rank is lost"):
            first.sum_(torch.ones(3))


def test_a_rank_that_leaves_waits_no_more(socket_directory):
    with opened(socket_directory, 2) as (first, _second):
        first.leave()
        with pytest.raises(RuntimeError, match="A rank is lost"):
            first.sum_(torch.ones(3))


def test_a_process_that_stands_still_is_waited_for_and_one_that_was_killed_is_noticed():
    library = load_library(best_target())
    file = shared_memory.make_file("sums", library.tetrad_sums_size_bytes(2), bytes(16))
    assert library.tetrad_shared_join(file, 0) == 0
    first = SharedSums(library, SharedMemory(file, 0, 2, timeout_s=0.01))
    with rank_process(file, 1) as second:
        with pytest.raises(RuntimeError, match=r"A rank did not answer within 0\.01 s"):
            first.sum_(torch.ones(3))

        second.kill()
        second.wait()
        with pytest.raises(RuntimeError, match="A rank is lost"):
            first.sum_(torch.ones(3))


def test_memory_that_one_rank_cannot_have_is_used_by_none(socket_directory, monkeypatch):
    monkeypatch.setattr(shared_memory, "_attached", lambda _: None)

    with opened(socket_directory, 2) as ranks:
        found = on_all(ranks, lambda rank: rank.sum_(torch.full((4,), 2.0)))

    assert all(isinstance(rank, GroupSums) for rank in ranks)
    assert all(sums.tolist() == [4.0] * 4 for sums in found)


def test_a_file_of_another_process_is_not_taken_for_the_memory(tmp_path):
    """In another container the number of a process is that of a stranger."""
    token = bytes(range(16))
    strangers = tmp_path / "file"
    strangers.write_bytes(bytes(64))
    reader, writer = os.pipe()
    with strangers.open("r+b") as file:
        for number in (file.fileno(), reader, writer, 10**6):
            assert shared_memory._attached(f"{os.getpid()} {number} {token.hex()}") is None
        file.write(bytes(48) + token)
        file.flush()
        found = shared_memory._attached(f"{os.getpid()} {file.fileno()} {token.hex()}")
    assert found is not None
    for number in (found, reader, writer):
        os.close(number)


def test_the_memory_has_no_name(socket_directory):
    """So nothing is left when processes are killed."""
    with opened(socket_directory, 2) as ranks:
        names = {str(Path(f"/proc/self/fd/{rank._memory._file}").readlink()) for rank in ranks}

    assert names == {"/memfd:tetrad-sums (deleted)"}


class Ranks:
    """The part of Collectives that a program uses."""

    def __init__(self, sums) -> None:
        self.sums = sums


def summing(sums, num_threads: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Return a program that sums its first buffer [T, 64], and adds half of that to the second one, twice."""
    builder = ProgramBuilder(team_of(RUNNABLE[0], num_threads), RankSums(Ranks(sums)))
    source, target = builder.buffer(64), builder.buffer(64)
    builder.sum(source, source)
    builder.sum(source, target, added=0.5)
    program = builder.build("sums", NO_HEADS)
    return lambda x, out: program.run(len(x), given={source: x, target: out})


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared memory", "gloo"])
def test_a_program_adds_up_over_the_ranks(socket_directory, monkeypatch, num_threads, is_shared):
    if not is_shared:
        monkeypatch.setattr(shared_memory, "_attached", lambda _: None)
    values = [torch.randn(37, 64, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]

    def run(rank: int) -> list[torch.Tensor]:
        x, out = values[rank].clone(), torch.ones(37, 64)
        programs[rank](x, out)
        return [x, out]

    with opened(socket_directory, 2) as ranks:
        programs = [summing(each, num_threads) for each in ranks]
        found = on_all(range(2), run)

    total = 2 * (values[0] + values[1])
    for x, out in found:
        assert torch.equal(x, total)
        assert torch.equal(out, 1 + 0.5 * total)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize(("is_shared", "text"), [(True, "A rank is lost"), (False, "lost|closed|reset")])
def test_a_program_ends_with_an_error_when_a_rank_is_lost(socket_directory, monkeypatch, num_threads, is_shared, text):
    """Nothing is computed behind the sum that failed."""
    if not is_shared:
        monkeypatch.setattr(shared_memory, "_attached", lambda _: None)
    out = torch.ones(5, 64)
    with opened(socket_directory, 2) as ranks:
        run = summing(ranks[0], num_threads)
        ranks.pop().leave()
        with pytest.raises(RuntimeError, match=text):
            run(torch.ones(5, 64), out)

    assert torch.equal(out, torch.ones(5, 64))


def test_a_table_with_a_part_of_the_vocabulary_has_zeros_for_the_others_tokens():
    team, table = team_of(RUNNABLE[0]), torch.randn(6, 64)
    builder, out = ProgramBuilder(team), torch.full((4, 64), torch.nan)
    target = builder.buffer(64)
    builder.embed(pack_float(team, table), target, scale=2.0, first_id=10)
    ids = np.array([9, 10, 15, 16])
    tokens = Tokens(ids, np.zeros(4, np.int64), [], torch.empty(0))

    builder.build("embed", NO_HEADS).run(4, tokens, given={target: out})

    assert torch.equal(out, torch.stack([torch.zeros(64), 2 * table[0], 2 * table[5], torch.zeros(64)]))
