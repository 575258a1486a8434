"""The lives of KV blocks that are observed: how long, how idle, how often used again."""

import pytest

from tetrad.engine_core_svc.kv_cache.block_pool import BlockPool
from tetrad.engine_core_svc.kv_cache.block_samples import BlockObservers, BlockSamples
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.observability.metrics import EngineMetrics


class Clock:
    """A clock that tests set."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Observed:
    """Samples whose observations are kept."""

    def __init__(self, share: float = 1.0) -> None:
        self.clock = Clock()
        self.lifetimes, self.idle, self.gaps = [], [], []
        observers = BlockObservers(self.lifetimes.append, self.idle.append, self.gaps.append)
        self.samples = BlockSamples(share, observers, self.clock)


@pytest.fixture
def observed() -> Observed:
    return Observed()


def test_a_life_ends_when_its_block_is_allocated_again(observed):
    pool = BlockPool(2, watch=observed.samples)
    for observed.clock.seconds in (1.0, 4.0, 9.0):
        pool.free(pool.allocate(1))

    assert (observed.lifetimes, observed.idle, observed.gaps) == ([3.0, 5.0], [3.0, 5.0], [])


def test_uses_are_observed_when_the_life_ends(observed):
    pool = BlockPool(2, watch=observed.samples)
    [block] = pool.allocate(1)
    pool.cache(block, b"a")
    pool.free([block])
    for observed.clock.seconds in (1.0, 3.0, 6.0):
        pool.touch(iter([block]))
        pool.free([block])
    assert not observed.lifetimes

    observed.clock.seconds = 10.0
    pool.allocate(1)

    assert (observed.lifetimes, observed.idle, observed.gaps) == ([10.0], [4.0], [2.0, 3.0])


def test_only_the_last_uses_of_a_block_are_remembered(observed):
    pool = BlockPool(2, watch=observed.samples)
    [block] = pool.allocate(1)
    pool.cache(block, b"a")
    for observed.clock.seconds in (1, 2, 4, 8, 16, 32):
        pool.touch([block])
    pool.free([block] * 7)
    pool.allocate(1)

    assert observed.gaps == [4, 8, 16]


def test_a_share_of_the_blocks_is_observed():
    observed = Observed(0.25)
    pool = BlockPool(2001, watch=observed.samples)
    for _ in range(2):
        pool.free(pool.allocate(2000))

    assert 350 < len(observed.lifetimes) < 650


@pytest.mark.parametrize("forget", ["reset_prefix_cache", "rebuild"])
def test_lives_in_a_cache_that_is_emptied_are_not_observed(observed, forget):
    manager = KVCacheManager(2, 4, watch=observed.samples)
    manager.pool.free(manager.pool.allocate(1))

    getattr(manager, forget)()
    manager.pool.free(manager.pool.allocate(1))
    assert not observed.lifetimes

    observed.clock.seconds = 2.0
    manager.pool.allocate(1)
    assert observed.lifetimes == [2.0]


def test_requests_that_share_a_prefix_use_its_blocks(make_bench, observed):
    bench = make_bench(num_blocks=6, block_size=4, watch=observed.samples)
    for observed.clock.seconds in (0.0, 1.0, 3.0):
        bench.add(list(range(9)), max_tokens=2)
        bench.run()
    observed.clock.seconds = 10.0
    bench.add(list(range(100, 117)), max_tokens=2)
    bench.run()

    assert observed.gaps == [2.0, 2.0]
    assert sorted(observed.idle)[-2:] == [7.0, 7.0]


def test_metrics_have_what_is_observed():
    metrics = EngineMetrics()
    pool = BlockPool(2, watch=BlockSamples(1.0, metrics.block_observers, clock := Clock()))
    for clock.seconds in (0.0, 3.0):
        pool.free(pool.allocate(1))

    value = metrics.registry.get_sample_value
    assert value("tetrad:engine_kv_block_lifetime_seconds_sum") == 3.0
    assert value("tetrad:engine_kv_block_idle_before_evict_seconds_count") == 1.0
    assert value("tetrad:engine_kv_block_reuse_gap_seconds_count") == 0.0
