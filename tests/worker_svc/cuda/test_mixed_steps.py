"""Steps with prompts and decodes as graphs, interpreted: the tokens of launched steps, for any mixture that fits."""

from collections.abc import Iterable

import numpy as np
import pytest
import torch

from tests.worker_svc.conftest import Driver, save_tiny, tiny_config
from tests.worker_svc.cuda.conftest import TINY, PipelinedDriver, record_graphs
from tests.worker_svc.cuda.launches import Launches
from tests.worker_svc.families.tiny_models import save_family
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import DraftTokens, PromptEmbeds, SamplingSpec
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.attention import PromptTiles
from tetrad.worker_svc.cuda.graphs import TOKENS, ladder_to
from tetrad.worker_svc.cuda.mixed_rows import MixedLayout
from tetrad.worker_svc.cuda.row_tables import NO_ROWS
from tetrad.worker_svc.cuda.runner import CudaModelRunner

LAYOUT = KvLayout(num_blocks=80, block_size=16, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=70)
"""Graphs of 64 and of 70 tokens."""
PROMPTS = [np.random.default_rng(length).integers(3, 320, length).tolist() for length in (19, 1, 33, 7)]
WINDOWS = {"sliding_window": 12, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}
DRAWN = SamplingSpec(seed=3, temperature=0.9, top_p=0.9, num_logprobs=1)
PROMPT_LOGPROBS = SamplingSpec(temperature=0.0, num_logprobs=1, num_prompt_logprobs=2)


def recorded(model, layout: KvLayout = LAYOUT) -> CudaModelRunner:
    runner = model.make_runner(layout)
    record_graphs(runner)
    return runner


def mixed(driver: Driver) -> list[int]:
    """Run steps of chunks beside decodes, and of drafts beside a chunk; return the number of graphs of each step."""
    graphs = []

    def step(scheduled: dict[int, int]) -> None:
        with Launches() as launches:
            launched = driver.runner.execute(driver.plan(scheduled))
        driver.take(launched.wait())
        graphs.append(launches.graphs)

    driver.add(0, PROMPTS[0], DRAWN)
    driver.add(1, PROMPTS[1])
    step({0: 19, 1: 1})
    driver.add(2, PROMPTS[2], PROMPT_LOGPROBS)
    step({0: 1, 1: 1, 2: 20})
    driver.add(3, PROMPTS[3])
    step({0: 1, 2: 13, 3: 7, 1: 1})
    step(dict.fromkeys(range(4), 1))
    return graphs


def told(driver: Driver) -> dict[int, tuple[list[int], list[list[int]]]]:
    """Return tokens and candidates of each request."""
    return {
        handle: (
            each.output,
            [ids.tolist() for ids, _, _ in each.logprobs] + [ids.tolist() for _, ids, _ in each.prompt_logprobs],
        )
        for handle, each in driver.requests.items()
    }


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_moe", "gpt_oss"])
def test_a_mixed_step_that_is_replayed_brings_what_launches_bring(family, tmp_path, load_cuda):
    """Through both decoders; windows, sinks, mixtures of experts, and log-probabilities of prompts."""
    save_family(tmp_path, family)
    model = load_cuda(tmp_path)
    launched, replayed = Driver(model.make_runner(LAYOUT), LAYOUT), Driver(recorded(model), LAYOUT)

    assert (mixed(launched), mixed(replayed)) == ([0, 0, 0, 0], [1, 1, 1, 1])
    assert told(replayed) == told(launched)


def test_groups_with_windows_have_block_tables_of_their_own(tmp_path, load_cuda):
    save_tiny(tmp_path, tiny_config("Qwen3ForCausalLM", **TINY, **WINDOWS))
    model = load_cuda(tmp_path)
    launched, replayed = Driver(model.make_runner(LAYOUT), LAYOUT), Driver(recorded(model), LAYOUT)

    mixed(launched), mixed(replayed)

    assert told(replayed) == told(launched)


def test_mixed_steps_that_are_queued_before_results_are_read_bring_the_same(tiny_cuda):
    launched, replayed = Driver(tiny_cuda.make_runner(LAYOUT), LAYOUT), PipelinedDriver(recorded(tiny_cuda), LAYOUT)
    for driver in (launched, replayed):
        for handle, prompt in enumerate(PROMPTS):
            driver.add(handle, prompt)
    plans: list[dict[int, int]] = [{0: 19, 1: 1}, {0: 1, 1: 1, 2: 33}, {0: 1, 1: 1, 2: 1, 3: 7}, dict.fromkeys(range(4), 1)]

    for plan in plans:
        launched.step(plan)
        replayed.launch(replayed.plan(plan))
    replayed.drain()

    assert told(replayed) == told(launched)


def test_drafts_beside_a_chunk_of_a_prompt_are_verified_in_a_graph(tiny_cuda):
    plain = Driver(tiny_cuda.make_runner(LAYOUT), LAYOUT)
    plain.add(0, PROMPTS[0])
    expected = plain.generate(4)[0]
    driver = Driver(recorded(tiny_cuda), LAYOUT)
    driver.add(0, PROMPTS[0])
    driver.step({0: 19})
    driver.add(2, PROMPTS[2])

    drafts = DraftTokens(np.array([0]), np.array([3]), np.array([*expected[1:3], 5]))

    with Launches() as launches:
        driver.step({0: 4, 2: 20}, drafts=drafts)

    assert launches.graphs == 1
    assert driver.requests[0].output == expected[:4]


def test_padding_writes_no_keys(tiny_cuda):
    runner = recorded(tiny_cuda)
    driver = Driver(runner, LAYOUT)
    driver.add(0, PROMPTS[0])
    driver.step({0: 19})
    before = [layer.clone() for layer in runner._kv_cache.layers]

    with torch.inference_mode():
        for size in (64, 70):
            runner._passes._graphs._mixed.run(NO_ROWS, size)

    for layer, earlier in zip(runner._kv_cache.layers, before, strict=True):
        assert torch.equal(layer, earlier)


def test_a_step_with_given_embeddings_is_launched(tmp_path, load_cuda):
    table = save_family(tmp_path, "llama").get_input_embeddings().weight.detach().numpy()
    driver = Driver(recorded(load_cuda(tmp_path)), LAYOUT)
    driver.add(0, [0] * 7, prompt_embeds=PromptEmbeds(np.arange(7), table[np.array(PROMPTS[3])]))

    with Launches() as launches:
        driver.step({0: 7})

    assert launches.graphs == 0


@pytest.mark.parametrize(("most", "sizes"), [(16, (16,)), (64, (64,)), (70, (64, 70)), (8192, TOKENS)])
def test_graphs_have_up_to_1024_tokens_and_no_more_than_a_step(most, sizes):
    assert ladder_to(most, TOKENS) == sizes
    assert TOKENS[-1] == 1024


# --- the inputs of a graph ------------------------------------------------------------------------------------------------


def rows_of(computed: Iterable[int], scheduled: Iterable[int]) -> StepRows:
    computed, scheduled = np.array([*computed]), np.array([*scheduled])
    ends = np.cumsum(scheduled)
    return StepRows(
        slots=np.arange(len(scheduled)),
        num_computed=computed,
        num_scheduled=scheduled,
        first_token=ends - scheduled,
        num_decodes=int((scheduled == 1).sum()),
        num_tokens=int(ends[-1]),
        sampling_rows=np.arange(len(scheduled)),
    )


def test_one_row_has_all_padding_and_the_other_tiles_leave():
    layout = MixedLayout(4, PromptTiles(group=2, block_rows=16))
    packed = torch.from_numpy(layout.pack(rows_of((9, 30, 4), (1, 1, 10)), 32))

    rows = layout.view(packed, 32)

    assert rows.table.tolist() == [[0, 9, 1, 0, 10], [1, 30, 1, 1, 31], [2, 4, 10, 2, 14], [-1, 0, 20, 12, 0], [-1, 0, 0, 0, 0]]
    assert rows.first_query.tolist() == [0, 1, 2, 12, 12, 12]
    assert rows.num_keys.tolist() == [10, 31, 14, 0, 0]
    assert rows.decode_keys.tolist() == [10, 31, 0, 0]
    assert rows.tiles.tolist() == [[2, 8], [2, 0], *[[-1, -1]] * 6]


@pytest.mark.parametrize("scheduled", [(64,), (2,) * 32, (1, 1, 9, 9, 9, 9, 26), (17, 17, 17, 13), (63, 1)])
def test_a_graph_has_room_for_the_tiles_of_every_step(scheduled):
    tiles, rows = PromptTiles(group=2, block_rows=16), rows_of((0,) * len(scheduled), sorted(scheduled))

    assert len(tiles.of(rows)) <= tiles.most(64, len(scheduled))
