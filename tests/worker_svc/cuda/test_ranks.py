"""Several ranks of the cuda device, interpreted, with gloo in place of NCCL: the tokens of one rank, whatever a step has."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.grids import grid
from tests.lora_files import merged, save_lora
from tests.worker_svc.conftest import GREEDY, Driver, save_tiny, tiny_config
from tests.worker_svc.cuda.conftest import host_only, layout_of
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.ranks.groups import Group, Rank, open_group
from tests.worker_svc.ranks.test_loras import LIMITS, install
from tests.worker_svc.sampler.custom_processors import MODULE
from tetrad.services.errors import ModelError
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import SamplingSpec
from tetrad.worker_svc.core.result import finished
from tetrad.worker_svc.cuda.device.accelerator import HostAccelerator
from tetrad.worker_svc.devices.cuda import CudaDevice
from tetrad.worker_svc.sampler.custom_classes import import_classes

pytestmark = host_only  # NCCL wants a card for each rank

LAYOUT = KvLayout(num_blocks=40, block_size=16, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=32)
SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
SEEDED = SamplingSpec(temperature=0.8, top_p=0.9, seed=3)
SAMPLINGS = (SamplingSpec(temperature=0.0, num_logprobs=2, num_prompt_logprobs=0), SEEDED, GREEDY)
FAMILIES = ("qwen3", "gpt_oss", "qwen2_moe", "deepseek_v3", "olmo2", "gemma2", "falcon_h1", "bloom")


def device() -> CudaDevice:
    return CudaDevice(WorkerSettings(device="cuda", enforce_eager=True), HostAccelerator)


def recording() -> CudaDevice:
    return CudaDevice(WorkerSettings(device="cuda"), HostAccelerator)


def answers(driver: Driver) -> dict[int, list[int]]:
    """Generate in chunks, the rest of a prompt beside decodes."""
    for handle, sampling in enumerate(SAMPLINGS):
        driver.add(handle, range(5 + handle, 25 + 3 * handle), sampling)
    driver.step({0: 20})
    driver.step({0: 1, 1: 16})
    return driver.generate(5, chunk=10)


@contextmanager
def loaded(directory: Path, model: Path, size: int = 2, layout: KvLayout = LAYOUT, **options: object) -> Iterator[Group]:
    with open_group(directory, size, make_device=device) as group:
        group.load(model, layout, **{"dtype": "float32", **options})
        yield group


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> tuple[Path, torch.nn.Module]:
    directory = tmp_path_factory.mktemp("llama")
    return directory, save_tiny(directory, tiny_config("LlamaForCausalLM", **SIZES))


@pytest.fixture(scope="module")
def alone(llama, load_cuda) -> Driver:
    driver = Driver(load_cuda(llama[0], enforce_eager=True).make_runner(LAYOUT), LAYOUT)
    answers(driver)
    return driver


def tokens_of(rank: Rank) -> list[list[int]]:
    """Return the tokens of each request that a rank has on its device, the sampled ones included."""
    runner = rank.compute.run(lambda: rank.worker.cache.runner._runner)  # after the orders that are queued
    batch, token_ids = runner.batch, runner.state.token_ids
    slots = [batch.slot_of(handle) for handle in range(len(SAMPLINGS))]
    return [token_ids[slot, : batch.num_tokens[slot]].tolist() for slot in slots]


def outputs_of(driver: Driver) -> dict[int, list[int]]:
    return {handle: request.output for handle, request in driver.requests.items()}


@pytest.mark.parametrize("size", [2, 4])
def test_tokens_are_those_of_one_rank_and_log_probabilities_within_a_tolerance(llama, alone, size, tmp_path):
    """With four ranks, two have the same keys and values."""
    with loaded(tmp_path, llama[0], size) as group:
        together = Driver(group, LAYOUT)
        assert answers(together) == outputs_of(alone)
        assert [tokens_of(rank) for rank in group.ranks] == [tokens_of(group.ranks[0])] * size

    for (ids, values, _), (other_ids, other_values, _) in zip(
        alone.requests[0].logprobs, together.requests[0].logprobs, strict=True
    ):
        assert ids.tolist() == other_ids.tolist()
        np.testing.assert_allclose(other_values, values, atol=1e-4)


@pytest.mark.parametrize("family", grid(FAMILIES, lambda name: name in ("gpt_oss", "deepseek_v3", "falcon_h1")))
def test_every_kind_of_layer_is_divided(family, load_cuda, tmp_path):
    """Norms of heads, sinks, experts, latent attention, norms over all heads, norms around layers, states beside attention,
    linear biases of heads.
    """
    save_family(tmp_path / "model", family)
    model = load_cuda(tmp_path / "model", enforce_eager=True)
    layout = layout_of(model, LAYOUT)
    expected = answers(Driver(model.make_runner(layout), layout))

    with open_group(tmp_path, 2, make_device=device) as group:
        layout = group.load(tmp_path / "model", LAYOUT, dtype="float32")
        assert answers(Driver(group, layout)) == expected


def test_recorded_steps_serve_every_group_that_the_ranks_join(llama, alone, tmp_path):
    """A graph has the connections of one group: in the next one the ranks record again, with the weights that they have."""
    with open_group(tmp_path, 2, make_device=recording) as group:
        group.load(llama[0], LAYOUT, dtype="float32")
        group.warm_up()
        assert answers(Driver(group, LAYOUT)) == outputs_of(alone)
        models = [rank.worker.loaded_model() for rank in group.ranks]

        group.join()
        group.load(llama[0], LAYOUT, dtype="float32")
        group.warm_up()

        assert [rank.worker.loaded_model() for rank in group.ranks] == models
        assert answers(Driver(group, LAYOUT)) == outputs_of(alone)


def test_ranks_sleep_and_wake_with_their_parts(llama, alone, tmp_path):
    with loaded(tmp_path, llama[0]) as group:
        for rank in group.ranks:
            rank.compute.run(rank.worker.sleep, 1)
        for rank in group.ranks:
            assert not rank.compute.run(rank.worker.wake_up, ())

        assert answers(Driver(group, LAYOUT)) == outputs_of(alone)


def test_drafts_are_verified_on_every_rank(llama, alone, tmp_path):
    expected = outputs_of(alone)
    with loaded(tmp_path, llama[0]) as group:
        driver = Driver(group, LAYOUT)
        for handle, sampling in enumerate(SAMPLINGS):
            driver.add(handle, range(5 + handle, 25 + 3 * handle), sampling)
        while any(driver.remaining(handle) > 1 or not driver.requests[handle].output for handle in driver.requests):
            driver.step({h: min(10, driver.remaining(h)) for h in driver.requests if not driver.requests[h].output})
        driver.verify({0: expected[0][1:3], 1: [expected[1][1], 7], 2: [9]})

    assert [request.output for request in driver.requests.values()] == [expected[0][:4], expected[1][:3], expected[2][:2]]


@pytest.mark.parametrize("family", grid(("falcon_h1", "qwen3_next", "lfm2"), lambda name: name == "falcon_h1"))
def test_a_state_has_the_accepted_drafts_on_every_rank(family, load_cuda, tmp_path):
    """All ranks sample the same tokens, so each finds the accepted drafts itself."""
    save_family(tmp_path / "model", family)
    model = load_cuda(tmp_path / "model", enforce_eager=True)
    layout = layout_of(model, LAYOUT)
    expected = answers(Driver(model.make_runner(layout), layout))

    with open_group(tmp_path, 2, make_device=device) as group:
        driver = Driver(group, group.load(tmp_path / "model", LAYOUT, dtype="float32"))
        for handle, sampling in enumerate(SAMPLINGS):
            driver.add(handle, range(5 + handle, 25 + 3 * handle), sampling)
        for handle in driver.requests:
            driver.step({handle: driver.remaining(handle)})
        driver.verify({0: expected[0][1:3], 1: [expected[1][1], 7], 2: [9]})

        assert driver.generate(5) == {handle: tokens[:5] for handle, tokens in expected.items()}


def test_a_request_that_fails_on_the_device_leaves_the_steps_of_all_ranks(llama, tmp_path):
    """The leader alone finds the failure: it reads the results."""
    path, _ = llama
    with loaded(tmp_path, path) as group:
        driver = Driver(group, LAYOUT)
        driver.add(0, [5, 6, 7])
        expected = driver.generate(4)[0]
        driver.remove(0)
        for rank in group.ranks:
            spoil_second_row(rank.worker.cache.runner._runner)
        driver.add(1, [5, 6, 7])
        driver.add(2, [9, 9])
        failed = group.execute(driver.plan({1: 3, 2: 2}))

        assert [handle for handle, _ in failed.failures] == [2]
        driver.remove(2)
        driver.take(replace(failed, failures=()))
        assert driver.generate(4)[1] == expected


def spoil_second_row(runner) -> None:
    """Make the second row of the next logits not a number."""
    make, pending = runner._model.logits, [True]

    def logits(hidden):
        found = make(hidden)
        if pending:
            pending.clear()
            found[1] = torch.nan
        return found

    runner._model.logits = logits


def test_adapters_are_divided_like_the_layers(llama, assert_greedy, tmp_path):
    path, reference = llama
    adapter = save_lora(tmp_path / "adapter", reference, "q_proj|k_proj|o_proj|up_proj|down_proj|lm_head", rank=4, seed=1)
    references = [reference, merged(reference, adapter)]
    with loaded(tmp_path, path, loras=LIMITS) as group:
        [_] = set(install(group, 1, adapter))
        driver = Driver(group, LAYOUT)
        for handle in range(3):
            driver.add(handle, range(5 + handle, 25), GREEDY, lora_id=handle % 2)
        outputs = driver.generate(4)

    for handle in range(3):
        assert_greedy(references[handle % 2], list(range(5 + handle, 25)), outputs[handle])


@pytest.mark.parametrize(
    ("options", "size", "text"),
    [
        ({}, 3, r"tensor_parallel_size 3 does not divide .* It may be: 1, 2, 4\."),
        ({"runner": "pooling"}, 2, "tensor_parallel_size 2: a model that pools runs on one worker; use 1"),
        ({"pooler_config_json": '{"pooling_type": "MEAN"}'}, 2, "pooler_config is for models that pool; this one generates"),
    ],
    ids=str,
)
def test_what_cannot_be_divided_is_refused_in_one_line(llama, options, size, text, tmp_path):
    with open_group(tmp_path, size, make_device=device) as group, pytest.raises(ModelError, match=text):
        group.load(llama[0], LAYOUT, **options)


def test_every_rank_applies_custom_processors(llama, load_cuda, tmp_path):
    """Every rank samples; an error of a processor fails its request on all of them."""
    classes = import_classes([f"{MODULE}:{name}" for name in ("Hash", "Wrong")])
    samplings = [SamplingSpec(temperature=0.0, extra_args=asked) for asked in ({"hash": 3.0}, {"wrong": "shape", "later": 2})]

    def run(driver: Driver) -> tuple[list[int], list[int]]:
        """Return the tokens of the first request, and the requests that have failed."""
        failed = []
        for handle, sampling in enumerate(samplings):
            driver.add(handle, range(5, 20), sampling)
        for _ in range(5):
            result = finished(driver.runner.execute(driver.plan({handle: driver.remaining(handle) for handle in (0, 1)})))
            failed += [handle for handle, _ in result.failures]
            driver.requests[0].output += result.token_ids[result.handles == 0].tolist()
        return driver.requests[0].output, failed

    alone = load_cuda(llama[0], enforce_eager=True, logits_processors=classes)
    expected = run(Driver(alone.make_runner(LAYOUT), LAYOUT))
    with open_group(tmp_path, 2, make_device=device) as group:
        for rank in group.ranks:
            rank.worker._request.keywords["logits_processors"] = classes
        found = run(Driver(group, group.load(llama[0], LAYOUT, dtype="float32")))

    assert found == expected
    assert expected[1] == [1]
    assert len(expected[0]) == 5
