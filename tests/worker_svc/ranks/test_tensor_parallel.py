"""Ranks that compute a model together give the tokens of one rank, for models of many kinds."""

import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from benchmarks.stack import free_port
from tests.grids import pairs
from tests.worker_svc.conftest import GREEDY, LAYOUT, Driver
from tests.worker_svc.families.tiny_models import FAMILIES, save_family
from tests.worker_svc.ranks.groups import open_group
from tetrad.services.errors import DeadlineExceeded, InvalidRequest, ModelError, Unavailable
from tetrad.worker_svc.core.plan import GrammarRows, SamplingSpec
from tetrad.worker_svc.core.ranks import GroupPlace, Shard
from tetrad.worker_svc.layers import rendezvous
from tetrad.worker_svc.layers.rendezvous import Rendezvous
from tetrad.worker_svc.native import shared_memory

EIGHT = ("llama", "qwen3", "gpt_oss", "qwen2_moe", "deepseek_v3", "olmo2", "falcon_h1", "bloom")
"""Grouped queries, norms of heads, experts with sinks and biases, shared experts, latent attention, norms over all heads,
states beside attention, linear biases of heads.
"""
EVERY = bool(os.environ.get("TEST_ALL_FAMILIES"))
CASES = list(product(FAMILIES, (2, 4))) if EVERY else pairs(EIGHT, (2, 4))
"""Families and shards."""
SEEDED = SamplingSpec(temperature=0.9, top_p=0.9, seed=7, num_logprobs=3)
PROMPTS = [list(range(5, 45)), [9, 8, 7], list(range(60, 77))]
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def family(request, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("family")
    save_family(directory, request.param)
    return directory


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Without garbage collections, reference cycles keep what they refer to."""
    gc.disable()
    yield
    gc.enable()


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def answers(driver: Driver) -> dict[int, list[int]]:
    """Run three prompts in chunks, one of them preempted on its way, greedy and seeded."""
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt, SEEDED if handle == 1 else SamplingSpec(temperature=0.0, num_logprobs=3))
    driver.generate(4, chunk=16)
    preempted = driver.remove(2)
    again = driver.add(2, preempted.prompt + preempted.output, preempted.sampling)
    driver.generate(4, chunk=16)
    return {0: driver.requests[0].output, 1: driver.requests[1].output, 2: preempted.output + again.output}


@pytest.mark.parametrize(("family", "size"), CASES, indirect=["family"])
def test_tokens_are_those_of_one_rank_and_log_probabilities_within_a_tolerance(family, load, size, tmp_path):
    alone = Driver(load(family).make_runner(LAYOUT), LAYOUT)
    expected = answers(alone)

    with open_group(tmp_path, size) as group:
        layout = group.load(family)
        together = Driver(group, layout)
        found = answers(together)

    assert found == expected
    for handle, request in alone.requests.items():
        for (ids, values, _), (other_ids, other_values, _) in zip(
            request.logprobs, together.requests[handle].logprobs, strict=True
        ):
            assert ids.tolist() == other_ids.tolist()
            np.testing.assert_allclose(other_values, values, atol=TOLERANCE)


def test_each_rank_reads_and_keeps_its_part_alone(load, tmp_path):
    path = tmp_path / "model"
    # Whole panels of rows for each rank: smaller matrices would be padded.
    sizes = {"hidden_size": 128, "intermediate_size": 256, "vocab_size": 1024}
    save_family(path, "llama", num_attention_heads=8, num_key_value_heads=4, **sizes)
    whole = load(path)

    with open_group(tmp_path, 2) as group:
        group.load(path)
        infos = [rank.worker.snapshot().model for rank in group.ranks]
        [groups] = {rank.worker.kv_groups(16) for rank in group.ranks}

    assert all(info.num_parameters < 0.52 * whole.info.num_parameters for info in infos)
    assert all(info.weights_size_bytes < 0.52 * whole.info.weights_size_bytes for info in infos)
    assert groups[0].block_size_bytes == whole.kv_groups(16)[0].block_size_bytes // 2


def test_constraints_and_drafts_are_the_leaders_alone(tiny_llama, load, tmp_path):
    """A mask allows one token; drafts of the right tokens are accepted."""
    path, _ = tiny_llama
    allowed = np.zeros((1, 10), np.uint32)
    allowed[0, 77 // 32] = 1 << 77 % 32

    def run(driver: Driver) -> list[int]:
        driver.add(1, [5, 6, 7], GREEDY)
        driver.step({1: 3}, grammar=GrammarRows(np.array([1]), allowed))
        driver.generate(4)
        following = list(expected[4:7]) if expected else []
        driver.verify({1: following})
        driver.generate(8)
        return driver.requests[1].output

    expected: list[int] = []
    expected = run(Driver(load(path).make_runner(LAYOUT), LAYOUT))
    with open_group(tmp_path, 2) as group:
        group.load(path)
        found = run(Driver(group, LAYOUT))

    assert found[0] == 77
    assert found[:8] == expected[:8]


def test_a_group_that_was_rebuilt_goes_on_with_the_weights_that_it_has(tiny_llama, tmp_path):
    path, _ = tiny_llama
    with open_group(tmp_path, 2) as group:
        group.load(path)
        driver = Driver(group, LAYOUT)
        driver.add(1, PROMPTS[0], GREEDY)
        before = list(driver.generate(4)[1])
        models = [rank.worker.weights.model for rank in group.ranks]

        group.ranks[1].worker._device._ranks.disconnect()
        with pytest.raises(Exception, match=r"closed|reset|lost"):
            driver.step({1: 1})
        group.join()
        group.load(path)

        driver = Driver(group, LAYOUT)
        for rank in group.ranks:
            rank.worker.cache.runner.forget_all()
        driver.add(2, PROMPTS[0], GREEDY)
        assert driver.generate(4)[2] == before
        assert [rank.worker.weights.model for rank in group.ranks] == models


def test_an_order_that_fails_on_a_member_fails_the_leaders_step(tiny_llama, tmp_path):
    path, _ = tiny_llama
    with open_group(tmp_path, 2) as group:
        group.load(path)
        group.ranks[1].worker.cache.runner._part = None  # whatever a device may raise

        driver = Driver(group, LAYOUT)
        driver.add(1, PROMPTS[0], GREEDY)
        with pytest.raises(RuntimeError, match=r"closed|reset|lost"):
            driver.step({1: 40})


@pytest.mark.parametrize(("address", "rank"), [("unix:{}/{}.sock", 0), ("127.0.0.1:0", 1)], ids=["unix", "tcp"])
def test_a_rank_whose_peers_do_not_come_says_so_in_one_line(address, rank, socket_directory):
    addresses = [address.format(socket_directory, number) for number in range(2)]
    place = GroupPlace(Shard(rank, 2), 7, addresses, 0.05)

    with pytest.raises(DeadlineExceeded, match=rf"^Rank {rank} of 2 did not meet the others: .*Are all workers") as raised:
        Rendezvous(place)

    assert "\n" not in raised.value.message


@pytest.mark.parametrize(("address", "rank"), [("unix:{}/{}.sock", 0), ("127.0.0.1:0", 0), ("127.0.0.1:0", 1)])
def test_a_rank_that_another_group_wants_waits_no_longer(address, rank, socket_directory, monkeypatch):
    monkeypatch.setattr(rendezvous, "_CONNECT_S", 0.1)
    addresses = [address.format(socket_directory, number) for number in range(2)]
    place = GroupPlace(Shard(rank, 2), 7, addresses, 60.0, is_wanted=lambda: False)
    started = time.monotonic()

    with pytest.raises(Unavailable, match=f"^Rank {rank} of 2 waits for the others no longer"):
        Rendezvous(place)

    assert time.monotonic() - started < 20


@pytest.mark.parametrize("host", ["[::1]", "ipv6:[::1]", "ipv4:127.0.0.1", "dns:///localhost", "dns:localhost", "localhost"])
def test_ranks_meet_at_every_form_of_address_that_an_engine_core_takes(host):
    if "::1" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    addresses = [f"{host}:{free_port() - 100}", f"{host}:1"]

    def meet(rank):
        return Rendezvous(GroupPlace(Shard(rank, 2), 7, addresses, 10.0))

    with ThreadPoolExecutor(2) as threads:
        leader, member = threads.map(meet, range(2))
    leader.publish("greeting", "hello")

    assert member.published("greeting") == "hello"


@pytest.mark.parametrize("address", ["worker-0", "worker-0:", ":50053", "worker-0:http", "worker-0:65436"])
def test_an_address_without_a_port_to_meet_at_is_refused_by_name(address):
    with pytest.raises(InvalidRequest, match=f"^Rank address '{address}' is not supported: .*port of at most 65435"):
        Rendezvous(GroupPlace(Shard(0, 2), 7, [address, "worker-1:50053"], 0.05))


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_on_several_machines_meet_again_whichever_joins_first(tiny_llama, tmp_path, monkeypatch, no_collections, first):
    """A member that joins before the leader finds the store of the group before.

    The leader opens its port again: nothing that a step leaves keeps the port.
    """
    monkeypatch.setattr(shared_memory, "make_file", lambda *_: None)
    path, _ = tiny_llama
    with open_group(tmp_path, 2, address=f"127.0.0.1:{free_port() - 100}") as group:
        answers = []
        for _ in range(3):
            group.join(first)
            group.load(path)
            for rank in group.ranks:
                rank.worker.cache.runner.forget_all()
            driver = Driver(group, LAYOUT)
            driver.add(1, PROMPTS[0], GREEDY)
            answers.append(list(driver.generate(4)[1]))
    assert answers[1:] == answers[:-1]


@pytest.mark.parametrize("shape", [(2, 1), (1, 2)], ids=["shards", "stages"])
def test_a_member_that_gets_another_place_leaves_its_group_at_once(socket_directory, shape):
    before = threading.enumerate()
    with open_group(socket_directory, *shape) as group:
        [follower] = [thread for thread in threading.enumerate() if thread.name == "follower" and thread not in before]

        group.ranks[1].join(GroupPlace(Shard(0, 1), 2, [f"unix:{socket_directory}/1.sock"]))

        follower.join(10)
        assert not follower.is_alive()


@pytest.mark.parametrize(("size", "sizes"), [(4, "1, 2, 3, 6"), (5, "1, 2, 3, 6")])
def test_a_size_that_does_not_divide_is_refused_with_those_that_do(save_tiny_model, tmp_path, size, sizes):
    from tests.worker_svc.conftest import tiny_config
    from tetrad.worker_svc.families.check import check_config
    from tetrad.worker_svc.model_facts.sharding import check_size

    config = check_config(tiny_config("LlamaForCausalLM", num_key_value_heads=6), "cpu")

    check_size(config, 2)
    with pytest.raises(ModelError, match=f"tensor_parallel_size {size} does not divide .* It may be: {sizes}\\."):
        check_size(config, size)
