"""The CUDA runner swaps blocks before its step, like every other."""

from dataclasses import replace

import numpy as np
import torch

from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import SMALL, host_only
from tests.worker_svc.cuda.test_ranks import LAYOUT, device
from tests.worker_svc.ranks.groups import open_group
from tetrad.worker_svc.core.plan import CachedRequests, SchedulerOutput

NONE = np.empty(0, np.int64)


def test_blocks_go_to_the_host_and_come_back(tiny_cuda):
    runner = tiny_cuda.make_runner(replace(SMALL, num_host_blocks=2))
    for layer in runner._kv_cache.layers:
        layer[3] = 7.0

    moves = ({"swap_out": (np.array([3]), np.array([1]))}, {"swap_in": (np.array([1]), np.array([5]))})
    for number, move in enumerate(moves):
        runner.execute(SchedulerOutput(number, [], CachedRequests(NONE, NONE, NONE, NONE, NONE), **move))
        for layer in runner._kv_cache.layers:
            layer[3] = 0.0

    for layer in runner._kv_cache.layers:
        assert torch.all(layer[5] == 7.0)


@host_only
def test_the_blocks_of_all_stages_go_to_the_host_and_come_back(tiny_path, tmp_path):
    with open_group(tmp_path, 1, 2, make_device=device) as group:
        layout = group.load(tiny_path, replace(LAYOUT, num_host_blocks=1), dtype="float32")
        driver = Driver(group, layout)
        driver.add(0, range(5, 20))
        driver.step({0: 15})
        [block] = driver.requests[0].tables[0]
        caches = [rank.worker.cache.runner._runner._kv_cache for rank in group.ranks]
        before = [layer[block].clone() for cache in caches for layer in cache.layers]

        driver.step({0: 1}, swap_out=(np.array([block]), np.array([0])))
        for cache in caches:
            for layer in cache.layers:
                layer[block] = 0.0
        driver.step({0: 1}, swap_in=(np.array([0]), np.array([block])))

        for layer, kept in zip([layer for cache in caches for layer in cache.layers], before, strict=True):
            assert torch.equal(layer[block][:15], kept[:15])
