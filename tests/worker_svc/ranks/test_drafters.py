"""Draft models and draft heads beside a model on several ranks: the leader drafts alone, with the proposals of one rank."""

from pathlib import Path

import pytest

from tests.e2e.tiny_model import save_tiny_model
from tests.eagle3_files import save_eagle3
from tests.mtp_files import KINDS, save_mtp
from tests.worker_svc.conftest import GREEDY, Driver, save_tiny, tiny_config
from tests.worker_svc.ranks.groups import open_group
from tests.worker_svc.runner.proposals import proposals_of
from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import SamplingSpec

LAYOUT = KvLayout(num_blocks=200, block_size=16, max_model_len=256, max_num_seqs=16, max_num_batched_tokens=64)
SAMPLINGS = (GREEDY, SamplingSpec(seed=6, temperature=0.7, top_k=30, top_p=0.9))
SIZES = {"hidden_size": 64, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 7}


@pytest.fixture(params=["draft_model", "eagle3", *KINDS])
def drafted(request, tmp_path) -> tuple[Path, dict[str, str]]:
    """A model, and the options of its drafter."""
    target, draft = tmp_path / "target", tmp_path / "draft"
    target.mkdir()
    draft.mkdir()
    if request.param == "draft_model":
        return save_tiny_model(target), {"draft_method": "draft_model", "draft_model": str(save_tiny_model(draft))}
    if request.param == "eagle3":
        save_tiny(target, tiny_config("LlamaForCausalLM", **SIZES))
        return target, {"draft_method": "eagle3", "draft_model": str(save_eagle3(draft))}
    save_mtp(target, request.param)
    return target, {"draft_method": "mtp"}


def run(driver: Driver) -> tuple[list[dict[int, list[int]]], dict[int, list[int]]]:
    """Run ten steps, each of which verifies the proposals of the one before; return all proposals, and the outputs."""
    for handle, sampling in enumerate(SAMPLINGS):
        driver.add(handle, range(20 + handle, 36 + 3 * handle), sampling)
    proposals = [proposals_of(driver.step({handle: driver.remaining(handle) for handle in driver.requests}, num_spec_tokens=3))]
    for _ in range(10):
        drafts = {handle: proposals[-1].get(handle, []) for handle in driver.requests}
        proposals.append(proposals_of(driver.verify(drafts, num_spec_tokens=3)))
    return proposals, {handle: each.output for handle, each in driver.requests.items()}


def test_proposals_and_tokens_are_those_of_one_rank(cpu, drafted, tmp_path):
    path, options = drafted
    drafter = Path(options["draft_model"]) if "draft_model" in options else None
    alone = cpu.load_model(LoadRequest("m", path, draft_method=options["draft_method"], draft_path=drafter), lambda *_: None)
    proposals, outputs = run(Driver(alone.make_runner(LAYOUT), LAYOUT))
    assert any(len(drafts) == 3 for step in proposals for drafts in step.values())

    with open_group(tmp_path, 2) as group:
        group.load(path, LAYOUT, **options)
        assert run(Driver(group, LAYOUT)) == (proposals, outputs)


@pytest.mark.parametrize("method", ["draft_model", "mtp"])
def test_stages_take_no_drafter(tiny_llama, tmp_path, method):
    path, _ = tiny_llama
    with open_group(tmp_path, 1, 2) as group, pytest.raises(ModelError, match="is not supported for several stages; it runs"):
        group.load(path, draft_method=method)
