"""Levels: a soak finds a level that grows, and accepts one that only varies."""

import asyncio
import os

import pytest

from benchmarks.levels import Levels, quarters

FLAT = [50, 90, 100, 101, 100, 99, 100, 101, 100, 99, 100, 101]


def judged(service: str, unit: str, values: list[float]) -> list[str]:
    levels = Levels(os.getpid())
    levels.samples[service, unit] = values
    return levels.judge()


def test_a_level_is_the_median_of_a_quarter_and_the_first_one_does_not_count():
    assert quarters([1, 1, 1, 14, 10, 12, 0, 0, 0, 24, 999, 22]) == (12, 24)


@pytest.mark.parametrize("unit", ["MiB", "descriptors", "threads", "KV blocks"])
def test_a_level_that_only_varies_is_flat(unit):
    assert judged("frontend", unit, FLAT) == []


@pytest.mark.parametrize(("unit", "step"), [("MiB", 1), ("descriptors", 1), ("threads", 1), ("KV blocks", 2)])
def test_a_level_that_rises_slowly_is_named(unit, step):
    [line] = judged("worker", unit, [100 + step * index for index in range(12)])

    assert line.startswith("worker: ")
    assert unit in line


def test_few_samples_prove_nothing():
    assert judged("worker", "MiB", [1, 2, 3, 4]) == []


async def test_processes_are_sampled_until_told_to_stop():
    levels = Levels(os.getpid())
    watching = asyncio.create_task(levels.watch(0.001))
    while len(levels.samples["supervisor", "threads"]) < 3:  # noqa: ASYNC110 - it samples when it wakes up
        await asyncio.sleep(0)

    watching.cancel()

    assert {unit for _, unit in levels.samples} == {"MiB", "descriptors", "threads"}
    assert min(levels.samples["supervisor", "MiB"]) > 1
