"""EAGLE-3 heads and MTP layers on the CUDA device, interpreted: the CPU device's drafts, and the tokens of the model alone."""

from pathlib import Path

import pytest

from tests.eagle3_files import save_eagle3
from tests.mtp_files import KINDS, save_mtp
from tests.worker_svc.conftest import Driver, save_tiny, tiny_config
from tests.worker_svc.runner.proposals import proposals_of
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.plan import SamplingSpec

LAYOUT = KvLayout(num_blocks=40, block_size=8, max_model_len=64, max_num_seqs=4, max_num_batched_tokens=48)
SIZES = {"hidden_size": 64, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2}
SAMPLINGS = [SamplingSpec(temperature=0.0), SamplingSpec(seed=5, top_p=0.9), SamplingSpec(seed=6, temperature=0.7, top_k=30)]
LAYERS, K = 5, 3


@pytest.fixture(scope="module", params=["eagle3", *KINDS])
def options(request, tmp_path_factory):
    """A model's directory, and the options of a load with its head."""
    directory = tmp_path_factory.mktemp(request.param)
    if request.param != "eagle3":
        save_mtp(directory, request.param)
        return directory, {"draft_method": "mtp"}
    save_tiny(directory, tiny_config("LlamaForCausalLM", **SIZES, num_hidden_layers=LAYERS))
    head = save_eagle3(tmp_path_factory.mktemp("head"))
    return directory, {"draft_method": "eagle3", "draft_path": head}


@pytest.fixture(scope="module")
def headed(options, load_cuda):
    path, its = options
    return load_cuda(path, **its)


def driver_of(model, layout=LAYOUT) -> Driver:
    driver = Driver(model.make_runner(layout), layout)
    for handle, sampling in enumerate(SAMPLINGS):
        driver.add(handle, range(20 + handle, 30 + 3 * handle), sampling)
    return driver


def test_drafts(headed, options, load):
    path, its = options
    ours, cpus = driver_of(headed), driver_of(load(path, **its))
    drafted = []
    for driver in (ours, cpus):
        driver.step({0: 6, 1: 8}, num_spec_tokens=K)
    results = [d.step({h: d.remaining(h) for h in d.requests}, num_spec_tokens=K) for d in (ours, cpus)]
    for step in range(4):
        mine, theirs = map(proposals_of, results)
        assert mine == theirs, step
        drafts = {h: [*mine.get(h, [])[: step % 3], *([1] if step % 2 else [])] for h in ours.requests}
        results = [d.verify(drafts, num_spec_tokens=K) for d in (ours, cpus)]
    assert [r.output for r in ours.requests.values()] == [r.output for r in cpus.requests.values()]
