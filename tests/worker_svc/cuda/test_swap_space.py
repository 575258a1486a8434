"""The CUDA runner swaps blocks before its step, like every other."""

from dataclasses import replace

import numpy as np
import torch

from tests.worker_svc.cuda.conftest import SMALL
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
