"""A decode step of the runner divides the keys of its requests by the step's lengths: launched, and recorded as a graph."""

import numpy as np
import pytest
import torch

from tests.worker_svc.conftest import Driver, save_tiny, tiny_config
from tests.worker_svc.cuda.conftest import TINY, host_only, record_graphs
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.cuda import attention
from tetrad.worker_svc.kernels.decode_parts import PartSizes

LAYOUT = KvLayout(num_blocks=60, block_size=16, max_model_len=256, max_num_seqs=4, max_num_batched_tokens=256)
LENGTHS = 140, 5, 9
MIXED = {"sliding_window": 12, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}


@pytest.fixture
def lists(monkeypatch):
    """A list to which each launch adds the parts that it lists."""
    found, launch = [], attention.list_parts

    def noted(*arguments, **options):
        found.append(launch(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(attention, "list_parts", noted)
    return found


@pytest.mark.parametrize("uses_graphs", [False, True])
def test_a_divided_context_gives_the_tokens_of_the_cpu_device(uses_graphs, tmp_path, load, load_cuda, lists):
    """Three requests run on the graph of four, with a row of padding."""
    save_tiny(tmp_path, tiny_config("Qwen3ForCausalLM", **TINY, **MIXED))
    runners = [device(tmp_path).make_runner(LAYOUT) for device in (load, load_cuda)]
    if uses_graphs:
        record_graphs(runners[1])
    lists.clear()

    wanted, found = (generate(runner) for runner in runners)

    assert found == wanted
    decodes = lists[-2:]  # a graph of the prompts' step has lists of its own
    assert [each.window for each in decodes] == [12, 0]
    assert [row[4] for row in decodes[1].table.tolist() if row[0] >= 0][:3] == [2, 2, 1]
    assert not any(each.tickets.any() for each in lists)


def generate(runner) -> dict[int, list[int]]:
    """Return two tokens of each request: the second one by a decode step."""
    driver = Driver(runner, LAYOUT)
    for handle, length in enumerate(LENGTHS):
        driver.add(handle, np.random.default_rng(length).integers(0, 320, length).tolist())
    return driver.generate(2)


@host_only
def test_layers_with_the_same_window_share_a_list():
    lists = attention.PartLists(torch.tensor([5], dtype=torch.int32), PartSizes(1, 1, 1, 16))

    assert lists.of_window(0) is lists.of_window(0)
    assert lists.of_window(8) is lists.of_window(8) is not lists.of_window(0)
