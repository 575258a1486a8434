"""Stages of the cuda device, interpreted, with gloo in place of NCCL: the tokens of one rank, whatever a step has."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.grids import grid
from tests.lora_files import merged, save_lora
from tests.worker_svc.checkpoint.packed_weights.whole_models import FORMATS, write_model
from tests.worker_svc.conftest import GREEDY, Driver, save_tiny, tiny_config
from tests.worker_svc.cuda.conftest import host_only, layout_of
from tests.worker_svc.cuda.test_ranks import LAYOUT, SAMPLINGS, SEEDED, SIZES, answers, device, outputs_of, recording
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.ranks.groups import Group, Rank, open_group
from tests.worker_svc.ranks.in_turns import InTurns
from tests.worker_svc.ranks.test_loras import LIMITS, install
from tests.worker_svc.sampler.custom_processors import MODULE
from tetrad.worker_svc.core.plan import GrammarRows, PromptEmbeds, SamplingSpec
from tetrad.worker_svc.core.result import finished
from tetrad.worker_svc.sampler.custom_classes import import_classes

pytestmark = host_only  # NCCL wants a card for each rank

FAMILIES = [
    ("qwen2", (2, 2)),
    ("gpt_oss", (1, 2)),
    ("deepseek_v3", (1, 3)),
    ("nemotron_h", (1, 3)),
    ("falcon_h1", (2, 2)),
    ("gemma2", (1, 2)),
    ("bloom", (1, 2)),
    ("gpt2", (1, 2)),
    ("olmo2", (2, 2)),
    ("qwen3_next", (1, 2)),
]
"""Families, with shards and stages."""
SHORT = ("gpt_oss", "deepseek_v3", "nemotron_h", "bloom")
EVERYTHING = "q_proj|k_proj|o_proj|up_proj|down_proj|lm_head|embed_tokens"


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> tuple[Path, torch.nn.Module]:
    directory = tmp_path_factory.mktemp("llama")
    return directory, save_tiny(directory, tiny_config("LlamaForCausalLM", **{**SIZES, "num_hidden_layers": 3}))


@pytest.fixture(scope="module")
def one(llama, load_cuda):
    """The model on one rank."""
    return load_cuda(llama[0], enforce_eager=True)


@pytest.fixture(scope="module")
def expected(one) -> Driver:
    driver = Driver(one.make_runner(LAYOUT), LAYOUT)
    answers(driver)
    return driver


@pytest.fixture(scope="module")
def loaded(llama, tmp_path_factory) -> Iterator[Group]:
    """Two stages, which several tests use."""
    with open_group(tmp_path_factory.mktemp("pipeline"), 1, 2, make_device=device) as group:
        group.load(llama[0], LAYOUT, dtype="float32", loras=LIMITS)
        yield group


@pytest.fixture
def pipeline(loaded) -> Group:
    leader = loaded.ranks[0]
    leader.compute.run(leader.worker.cache.runner.forget_all)
    return loaded


def alone(one) -> Driver:
    return Driver(one.make_runner(LAYOUT), LAYOUT)


@pytest.mark.parametrize("shape", [(1, 2), (1, 3), (2, 2)], ids=str)
def test_tokens_are_those_of_one_rank_and_log_probabilities_within_a_tolerance(llama, expected, shape, tmp_path):
    with open_group(tmp_path, *shape, make_device=device) as group:
        group.load(llama[0], LAYOUT, dtype="float32")
        together = Driver(group, LAYOUT)
        assert answers(together) == outputs_of(expected)

    for mine, other in zip(expected.requests[0].logprobs, together.requests[0].logprobs, strict=True):
        assert mine[0].tolist() == other[0].tolist()
        np.testing.assert_allclose(other[1], mine[1], atol=1e-4)
    [(_, ids, values)], [(_, other_ids, other_values)] = (driver.requests[0].prompt_logprobs for driver in (expected, together))
    assert ids.tolist() == other_ids.tolist()
    np.testing.assert_allclose(other_values, values, atol=1e-4)


@pytest.mark.parametrize(("family", "shape"), grid(FAMILIES, lambda name, _: name in SHORT), ids=str)
def test_every_kind_of_layer_is_on_a_stage(family, shape, load_cuda, tmp_path):
    """Windows, sinks, experts, latent attention, states, layers of an MLP alone, norms of embeddings, tables of positions."""
    save_family(tmp_path / "model", family)
    model = load_cuda(tmp_path / "model", enforce_eager=True)
    layout = layout_of(model, LAYOUT)
    tokens = answers(Driver(model.make_runner(layout), layout))

    with open_group(tmp_path, *shape, make_device=device) as group:
        layout = group.load(tmp_path / "model", LAYOUT, dtype="float32")
        assert answers(Driver(group, layout)) == tokens


@pytest.mark.exhaustive(short="test_every_kind_of_layer_is_on_a_stage")
def test_shards_of_stages_have_whole_experts(load_cuda, tmp_path):
    save_family(tmp_path / "model", "qwen2_moe")
    tokens = answers(Driver(load_cuda(tmp_path / "model", enforce_eager=True).make_runner(LAYOUT), LAYOUT))

    with open_group(tmp_path, 2, 2, make_device=device) as group:
        group.load(tmp_path / "model", LAYOUT, dtype="float32", expert_parallel=True)
        assert answers(Driver(group, LAYOUT)) == tokens


def test_each_stage_reads_and_keeps_its_layers_alone(llama, one, tmp_path):
    """The leader has the last layers, the last norm and the output layer; the last rank has the embeddings."""
    with open_group(tmp_path, 1, 3, make_device=device) as group:
        group.load(llama[0], LAYOUT)
        infos = [rank.worker.snapshot().model for rank in group.ranks]
        blocks = [rank.worker.kv_groups(16)[0].block_size_bytes for rank in group.ranks]

    of_layer = infos[1].num_parameters
    vocabulary = one.info.vocab_size * one.info.hidden_size
    assert [info.num_parameters - of_layer for info in infos] == [vocabulary + one.info.hidden_size, 0, vocabulary]
    assert sum(info.num_parameters for info in infos) == one.info.num_parameters
    assert blocks == [blocks[0]] * 3


def test_all_stages_measure_their_largest_step_together(pipeline):
    """They exchange what a step exchanges; the first layers' stage counts hidden states in flight."""

    def measure(rank: Rank) -> int:
        device, model = rank.worker._device, rank.worker.loaded_model()
        return rank.compute.run(lambda: device.available_memory(model, utilization=1, max_num_batched_tokens=32))

    free = list(pipeline._threads.map(measure, pipeline.ranks))

    hidden_bytes = 2 * 32 * SIZES["hidden_size"] * 4
    assert free == [1 << 30, (1 << 30) - hidden_bytes]


def test_recorded_steps_serve_every_group_that_the_stages_join(llama, expected, tmp_path):
    """Exchanges are not recorded, but what the graphs of a stage read and write stays in place."""
    with open_group(tmp_path, 1, 2, make_device=recording) as group:
        for _ in range(2):
            group.load(llama[0], LAYOUT, dtype="float32")
            group.warm_up()
            assert answers(Driver(group, LAYOUT)) == outputs_of(expected)
            group.join()


def in_turns(group: Group) -> tuple[InTurns, Driver, Driver]:
    first, second = Driver(group, LAYOUT), Driver(group, LAYOUT)
    second._free, first._free = first._free[::2], first._free[1::2]
    second._step_id = 1000
    return InTurns(group, [first, second]), first, second


def test_steps_of_different_requests_in_flight_bring_the_tokens_of_one_after_the_other(pipeline, one):
    turns, first, second = in_turns(pipeline)
    reference = alone(one)
    for handle, sampling in enumerate((GREEDY, SEEDED, SamplingSpec(temperature=0.0, repetition_penalty=1.3))):
        for driver in (reference, second if handle else first):
            driver.add(handle, range(5 + handle, 18 + 2 * handle), sampling)

    turns.run(6)

    tokens = reference.generate(6)
    assert first.requests[0].output == tokens[0]
    assert [second.requests[handle].output for handle in (1, 2)] == [tokens[1], tokens[2]]


def test_a_row_of_a_request_that_left_in_flight_is_a_new_requests(pipeline, one):
    turns, first, _ = in_turns(pipeline)
    reference = alone(one)
    for handle in range(3):
        first.add(handle, range(5 + handle, 20))
    turns.begin(first, {0: 15, 1: 14, 2: 3})
    for handle in (0, 1):
        first.remove(handle)
    for handle in (3, 4):
        first.add(handle, range(30 + handle, 60))
        reference.add(handle, range(30 + handle, 60))

    turns.begin(first, {2: 10, 3: 12, 4: 4})
    turns.end_one()
    turns.end_one()
    tokens, _ = reference.generate(4), first.generate(4, chunk=10)

    assert [first.requests[handle].output[:4] for handle in (3, 4)] == [tokens[3], tokens[4]]


def test_a_preempted_request_goes_on_with_its_tokens(pipeline, expected):
    driver = Driver(pipeline, LAYOUT)
    prompt = [*range(6, 28)]
    driver.add(1, prompt, SEEDED)
    output = driver.generate(3)[1][:3]
    driver.remove(1)
    driver.add(1, prompt, SEEDED).output.extend(output)
    driver.requests[1].num_tokens += len(output)

    assert driver.generate(5)[1] == expected.requests[1].output[:5]


def test_a_mask_of_a_grammar_and_drafts_are_applied_on_the_last_stage(pipeline, one):
    """The other stages learn the number of right drafts from the tokens."""
    allowed = np.zeros((1, 10), np.uint32)
    allowed[0, 77 // 32] = 1 << 77 % 32

    def run(driver: Driver, drafts: dict[int, list[int]]) -> list[list[int]]:
        for handle in (1, 2):
            driver.add(handle, [5, 6, 7 + handle], GREEDY)
        driver.step({1: 3, 2: 3}, grammar=GrammarRows(np.array([1]), allowed))
        driver.generate(3)
        if drafts:
            driver.verify(drafts)
        driver.generate(7)
        return [driver.requests[handle].output[:7] for handle in (1, 2)]

    tokens = run(alone(one), {})
    assert tokens[0][0] == 77
    assert run(Driver(pipeline, LAYOUT), {1: tokens[0][3:6], 2: [tokens[1][3], 9]}) == tokens


@pytest.mark.parametrize("family", grid(("falcon_h1", "qwen3_next", "lfm2"), lambda name: name == "falcon_h1"))
def test_a_state_has_the_accepted_drafts_on_every_stage(family, load_cuda, tmp_path):
    save_family(tmp_path / "model", family)
    model = load_cuda(tmp_path / "model", enforce_eager=True)
    layout = layout_of(model, LAYOUT)
    tokens = answers(Driver(model.make_runner(layout), layout))

    with open_group(tmp_path, 1, 2, make_device=device) as group:
        driver = Driver(group, group.load(tmp_path / "model", LAYOUT, dtype="float32"))
        for handle, sampling in enumerate(SAMPLINGS):
            driver.add(handle, range(5 + handle, 25 + 3 * handle), sampling)
        for handle in driver.requests:
            driver.step({handle: driver.remaining(handle)})
        driver.verify({0: tokens[0][1:3], 1: [tokens[1][1], 7], 2: [9]})

        assert driver.generate(5) == {handle: each[:5] for handle, each in tokens.items()}


def test_adapters_are_divided_like_the_layers(pipeline, llama, assert_greedy, tmp_path):
    """The second adapter changes layers of one stage alone."""
    _, reference = llama
    adapters = [
        save_lora(tmp_path / "all", reference, EVERYTHING, rank=4, seed=1),
        save_lora(tmp_path / "one", reference, r"model\.layers\.0\.self_attn\.q_proj", rank=4, seed=2),
    ]
    references = [reference, *(merged(reference, adapter) for adapter in adapters)]
    for lora_id, adapter in enumerate(adapters, 1):
        [_] = set(install(pipeline, lora_id, adapter))
    driver = Driver(pipeline, LAYOUT)
    for handle in range(3):
        driver.add(handle, range(5 + handle, 25), GREEDY, lora_id=handle)

    outputs = driver.generate(4, chunk=10)

    for handle in range(3):
        assert_greedy(references[handle], list(range(5 + handle, 25)), outputs[handle])


def test_quantized_weights_are_those_of_one_rank(load_cuda, tmp_path):
    new, add = FORMATS["awq"]
    quantized, _ = write_model(tmp_path, new(), add)
    reference = Driver(load_cuda(quantized, enforce_eager=True).make_runner(LAYOUT), LAYOUT)
    reference.add(0, [5, 9, 200])

    with open_group(tmp_path, 1, 2, make_device=device) as group:
        group.load(quantized, LAYOUT, dtype="float32")
        together = Driver(group, LAYOUT)
        together.add(0, [5, 9, 200])
        assert together.generate(3) == reference.generate(3)


def test_embeddings_in_place_of_ids_reach_the_first_layers(pipeline, llama):
    table = llama[1].get_input_embeddings().weight.detach().numpy()
    prompt, positions = np.array([7, 9, 11, 13, 17]), np.array([1, 3])
    driver = Driver(pipeline, LAYOUT)
    driver.add(0, prompt)
    masked = np.where(np.isin(range(5), positions), 0, prompt)
    driver.add(1, masked, prompt_embeds=PromptEmbeds(positions, table[prompt[positions]]))

    outputs = driver.generate(3)

    assert outputs[1] == outputs[0]


def test_a_request_that_fails_on_the_device_leaves_the_steps_of_all_stages(pipeline):
    driver = Driver(pipeline, LAYOUT)
    driver.add(0, [5, 6, 7])
    tokens = driver.generate(4)[0]
    driver.remove(0)
    for handle, ids in ((1, [5, 6, 7]), (2, [9, 9])):
        driver.add(handle, ids)
    runner = pipeline.ranks[0].worker.cache.runner._runner
    make = runner._model.logits
    runner._model.logits = lambda hidden: make(hidden).index_fill_(0, torch.tensor([1]), torch.nan)
    failed = pipeline.execute(driver.plan({1: 3, 2: 2}))
    runner._model.logits = make

    assert [handle for handle, _ in failed.failures] == [2]
    driver.remove(2)
    driver.requests[1].output += failed.token_ids[failed.handles == 1].tolist()
    assert driver.generate(4)[1] == tokens


def test_stages_refuse_and_fail_the_same_requests_of_custom_processors(llama, load_cuda, tmp_path):
    """The last stage alone applies processors; a request that one refuses runs on none."""
    classes = import_classes([f"{MODULE}:{name}" for name in ("Target", "Hash", "Wrong")])
    asked = ({"hash": 3.0}, {"target": "no number"}, {"wrong": "shape", "later": 2})

    def run(driver: Driver) -> tuple[list[int], list[int]]:
        failed = []
        for handle, arguments in enumerate(asked):
            driver.add(handle, range(5, 20), SamplingSpec(temperature=0.0, extra_args=arguments))
        for _ in range(4):
            scheduled = {handle: driver.remaining(handle) for handle in driver.requests}
            result = finished(driver.runner.execute(driver.plan(scheduled)))
            for handle, _ in result.failures:
                failed.append(handle)
                driver.remove(handle)
            driver.requests[0].output += result.token_ids[result.handles == 0].tolist()
        return driver.requests[0].output, failed

    model = load_cuda(llama[0], enforce_eager=True, logits_processors=classes)
    tokens = run(Driver(model.make_runner(LAYOUT), LAYOUT))
    with open_group(tmp_path, 1, 2, make_device=device) as group:
        for rank in group.ranks:
            rank.worker._request.keywords["logits_processors"] = classes
        assert run(Driver(group, group.load(llama[0], LAYOUT, dtype="float32"))) == tokens

    assert tokens[1] == [1, 2]


def test_stages_sleep_and_wake_with_their_parts(llama, expected, tmp_path):
    with open_group(tmp_path, 1, 2, make_device=device) as group:
        group.load(llama[0], LAYOUT, dtype="float32")
        for rank in group.ranks:
            rank.compute.run(rank.worker.sleep, 1)
        for rank in group.ranks:
            assert not rank.compute.run(rank.worker.wake_up, ())

        assert answers(Driver(group, LAYOUT)) == outputs_of(expected)


@pytest.mark.parametrize("failing", [1, 2], ids=["in the middle", "with the embeddings"])
def test_a_stage_that_fails_fails_the_step_and_the_group_goes_on_when_it_has_met_again(llama, expected, failing, tmp_path):
    with open_group(tmp_path, 1, 3, make_device=device) as group:
        group.load(llama[0], LAYOUT, dtype="float32")
        driver = Driver(group, LAYOUT)
        driver.add(1, [5, 6, 7])
        driver.generate(2)
        group.ranks[failing].worker.cache.runner._runner._passes = None

        with pytest.raises(Exception, match=r"closed|reset|lost|left|abort"):
            driver.step({1: 1})

        group.join()
        group.load(llama[0], LAYOUT, dtype="float32")
        assert answers(Driver(group, LAYOUT)) == outputs_of(expected)


def test_a_stage_that_leaves_fails_the_step_on_all_others(llama, tmp_path):
    with open_group(tmp_path, 1, 3, make_device=device) as group:
        group.load(llama[0], LAYOUT, dtype="float32")
        driver = Driver(group, LAYOUT)
        driver.add(1, [5, 6, 7])
        group.ranks[2].worker._device.leave_group()

        with pytest.raises(Exception, match=r"closed|reset|lost|left|abort"):
            driver.step({1: 3})
