"""The router's choice: the least busy engine core, unless another has the prompt cached; never to the point of overload."""

import itertools
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest

from tetrad.frontend.routing.adapter_memory import AdapterMemory
from tetrad.frontend.routing.prefix_memory import PrefixMemory
from tetrad.frontend.routing.router import Router
from tetrad.services.rpc.columns import pack_u32

BLOCK_SIZE = 16
AFFINITY = 16.0


def new_memory():
    memory = PrefixMemory()
    memory.begin(BLOCK_SIZE, 10_000)
    return memory


def new_adapters():
    memory = AdapterMemory()
    memory.begin(2)
    return memory


@dataclass(eq=False)
class Engine:
    """An engine whose requests end when the test says so."""

    identity: bytes
    num_requests: int = 0
    kv_cache_usage: float = 0.0
    prefixes: PrefixMemory = field(default_factory=new_memory)
    adapters: AdapterMemory = field(default_factory=new_adapters)
    running_loras: tuple[str, ...] = ()

    def has_adapter(self, name):
        return self.adapters.has(name, self.running_loras)


@pytest.fixture
def engines():
    return [Engine(b"first"), Engine(b"second")]


@pytest.fixture
def router():
    return Router(AFFINITY)


def prompt(*groups):
    """Return a prompt: `(name, num_tokens)` is a run of tokens that every prompt with the same name has."""
    return pack_u32(itertools.chain.from_iterable(Random(name).choices(range(50_000), k=size) for name, size in groups))


def is_within(counts, share):
    return max(counts) <= min(counts) * (1 + share)


@pytest.mark.parametrize("size", [20, 300])
def test_distinct_prompts_one_after_the_other_are_spread_evenly(router, engines, size):
    chosen = Counter(router.choose(engines, prompt((i, size))).identity for i in range(40))

    assert is_within(chosen.values(), 0.3)


def test_distinct_prompts_go_to_whoever_has_less_to_do(router, engines):
    engines[0].num_requests = 10

    chosen = [router.choose(engines, prompt((i, 300))) for i in range(3)]

    assert chosen == [engines[1]] * 3


def test_an_engine_whose_memory_is_fuller_is_the_busier_of_two(router, engines):
    engines[1].kv_cache_usage = 0.9

    assert {router.choose(engines, prompt((i, 30))).identity for i in range(8)} == {b"first"}


def test_who_holds_the_prefix_gets_the_request(router, engines):
    engines[1].num_requests = 2
    first = router.choose(engines, prompt(("system", 200), ("question 0", 20)))
    first.num_requests += 8

    chosen = [router.choose(engines, prompt(("system", 200), (f"question {i}", 20))) for i in range(10)]

    assert chosen == [first] * 10


@pytest.mark.parametrize("holder", [0, 1])
def test_nothing_is_drawn_away_from_the_one_that_holds_it(router, engines, holder):
    """Wherever the prefix would be at home if nobody held it."""
    for name in range(10):
        engines[holder].prefixes.expect(router._keys(engines, prompt((name, 200)), "")[BLOCK_SIZE])
    engines[holder].num_requests = 8

    chosen = [router.choose(engines, prompt((name, 200), ("question", 8))) for name in range(10)]

    assert chosen == [engines[holder]] * 10


def test_affinity_ends_where_its_engine_is_ahead_by_too_much(router, engines):
    for engine in engines:
        engine.num_requests = 100
    for _ in range(100):
        router.choose(engines, prompt(("system", 200), ("question", 20))).num_requests += 1
    ahead = abs(engines[0].num_requests - engines[1].num_requests)

    # Half of it is the home's for ever; both hold the prefix now.
    assert ahead <= 48


def test_a_prefix_that_all_hold_is_spread_nearly_by_load(router, engines):
    for engine in engines:
        engine.prefixes.expect(list(router._keys([engine], prompt(("system", 200)), "")[BLOCK_SIZE]))

    for i in range(40):
        router.choose(engines, prompt(("system", 200), (i, 20))).num_requests += 1

    assert abs(engines[0].num_requests - engines[1].num_requests) <= AFFINITY / 2 + 1


@pytest.mark.parametrize(("shared", "own"), [(48, 10), (200, 400)], ids=["short", "small part"])
def test_a_common_beginning_that_is_short_or_a_small_part_is_no_reason(router, engines, shared, own):
    chosen = Counter(router.choose(engines, prompt(("header", shared), (i, own))).identity for i in range(40))

    assert is_within(chosen.values(), 0.3)


def test_prompts_with_different_salts_share_nothing(router, engines):
    first = router.choose(engines, prompt(("system", 200)), "one tenant")

    held = {
        salt: first.prefixes.num_held(router._keys([first], prompt(("system", 200)), salt)[BLOCK_SIZE])
        for salt in ("one tenant", "another", "")
    }

    assert held == {"one tenant": 200 // BLOCK_SIZE, "another": 0, "": 0}


def groups_of(num_groups, size, seed, at_once=12):
    """Return how the requests of each group were spread, by engine, so many of which are there at the same time."""
    random, router, engines, running = Random(seed), Router(AFFINITY), [Engine(b"first"), Engine(b"second")], []
    order = [group for group in range(num_groups) for _ in range(size)]
    random.shuffle(order)
    spread = {group: Counter() for group in range(num_groups)}
    for number, group in enumerate(order):
        if len(running) == at_once:
            running.pop(random.randrange(at_once)).num_requests -= 1
        running.append(router.choose(engines, prompt((f"group {seed} {group}", 300), (number, 20))))
        running[-1].num_requests += 1
        spread[group][running[-1].identity] += 1
    return spread


@pytest.mark.parametrize("seed", range(5))
def test_a_group_stays_with_one_engine_and_groups_are_spread(seed):
    spread = groups_of(num_groups=6, size=20, seed=seed)

    assert all(max(counts.values()) >= 18 for counts in spread.values())
    assert sorted(Counter(counts.most_common(1)[0][0] for counts in spread.values()).values()) in ([3, 3], [2, 4])


def test_two_frontends_that_share_nothing_agree_on_most_new_prefixes():
    """They meet the prefixes in different orders, and hear nothing from the engines."""
    agreed = 0
    for seed in range(50):
        homes = []
        for frontend in range(2):
            router, engines = Router(AFFINITY), [Engine(b"first"), Engine(b"second")]
            order = Random(100 * seed + frontend).sample(range(4), 4)
            homes.append({i: router.choose(engines, prompt((f"{seed} {i}", 300))).identity for i in order})
        agreed += sum(homes[0][i] == homes[1][i] for i in range(4))

    assert agreed >= 150, "of 200; by chance 100"


def test_without_affinity_load_alone_decides(engines):
    router = Router(0)
    first = router.choose(engines, prompt(("system", 200)))
    first.num_requests = 1

    assert router.choose(engines, prompt(("system", 200))) is not first
    assert not first.prefixes


def test_an_engine_that_was_busy_for_long_is_not_owed_all_that_others_got(router, engines):
    engines[0].num_requests = 50
    for i in range(100):
        router.choose(engines, prompt((i, 30)))
    engines[0].num_requests = 0

    chosen = Counter(router.choose(engines, prompt((i, 30))).identity for i in range(100, 140))

    assert chosen[b"second"] >= 12


def test_an_engine_is_not_owed_all_that_other_frontends_gave_another(router, engines):
    engines[0].prefixes.num_new = 1000

    chosen = Counter(router.choose(engines, prompt((i, 300))).identity for i in range(40))

    assert chosen[b"first"] >= 12


def test_choosing_costs_microseconds():
    """A prompt of 2,000 tokens that all of four engines hold: the whole way for each of them. 60 microseconds on the machine of
    docs/routing.md; the bound is for one that is busy with other tests.
    """
    router, engines = Router(AFFINITY), [Engine(b"%d" % i) for i in range(4)]
    token_ids = prompt(("system", 2000))
    for engine in engines:
        engine.prefixes.expect(router._keys([engine], token_ids, "")[BLOCK_SIZE])

    times = []
    for _ in range(200):
        start = time.perf_counter()
        router.choose(engines, token_ids)
        times.append(time.perf_counter() - start)

    assert statistics.median(times) < 0.001


def test_requests_of_an_adapter_go_to_one_engine_and_adapters_are_spread(router, engines):
    homes = {}
    for turn in range(60):
        name = f"adapter-{turn % 20}"
        chosen = router.choose(engines, prompt((turn, 20)), lora_name=name)
        assert homes.setdefault(name, chosen) is chosen

    assert is_within(Counter(engine.identity for engine in homes.values()).values(), 1.0)


def test_frontends_agree_on_the_engine_of_an_adapter_that_none_has(engines):
    for index in range(10):
        fresh = [[Engine(engine.identity) for engine in order] for order in (engines, engines[::-1])]
        chosen = {Router(AFFINITY).choose(each, prompt((index, 20)), lora_name=f"a{index}").identity for each in fresh}
        assert len(chosen) == 1


@pytest.mark.parametrize("holder", [0, 1])
def test_an_engine_that_runs_an_adapter_for_another_frontend_gets_its_requests(router, engines, holder):
    engines[holder].running_loras = ("sql",)
    engines[holder].num_requests = 5

    assert router.choose(engines, prompt((1, 20)), lora_name="sql") is engines[holder]
    assert router.choose(engines, prompt((2, 20))) is engines[1 - holder], "the base model goes where there is less to do"


def test_an_engine_with_an_adapter_that_is_much_busier_is_passed_over(router, engines):
    first = router.choose(engines, prompt((1, 20)), lora_name="sql")
    first.num_requests = 50

    other = router.choose(engines, prompt((2, 20)), lora_name="sql")

    assert other is not first
    assert other.has_adapter("sql")


def test_adapters_beyond_an_engines_places_are_forgotten(engines):
    for name in ("a", "b", "a", "c"):
        engines[0].adapters.expect(name)

    assert [engines[0].has_adapter(name) for name in "abc"] == [True, False, True]


def test_without_affinity_load_alone_decides_for_adapters(engines):
    engines[0].running_loras = ("sql",)
    engines[0].num_requests = 1

    assert Router(0).choose(engines, prompt((1, 20)), lora_name="sql") is engines[1]
