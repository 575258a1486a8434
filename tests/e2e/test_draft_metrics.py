"""Counts of the drafts of single requests, through the whole stack: they add up to those of the engine core."""

import pytest

from tests.e2e.tiny_model import save_tiny_model
from tests.one_process_llm import one_process_llm
from tetrad import SamplingParams
from tetrad.engine_core_svc.scheduler.drafts import lookup
from tetrad.engine_core_svc.scheduler.drafts.rate_comparison import RateComparison

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
REPEATING = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True, logit_bias={50: 100.0})
FREE = SamplingParams(max_tokens=40, temperature=1.0, seed=1, ignore_eos=True)
NAMES = [f"tetrad:spec_decode_num_{each}" for each in ("drafts", "draft_tokens", "accepted_tokens")]
PROMPT = {"prompt_token_ids": [40, 41, 42, 43] * 3}


@pytest.fixture
def unjudged(monkeypatch) -> None:
    """Verify every proposal, without weighing the cost of steps."""
    monkeypatch.setattr(lookup, "may_pay", lambda *_: True)
    monkeypatch.setattr(RateComparison, "pays", lambda *_: True)
    monkeypatch.setattr(
        lookup, "worthwhile", lambda proposals, *_: {key: each.draft_ids for key, each in proposals.items() if each.draft_ids}
    )


@pytest.mark.usefixtures("unjudged")
@pytest.mark.parametrize("level", ["none", "summary", "detailed"])
def test_counts_of_requests_add_up(tmp_path, level):
    few = {"num_gpu_blocks_override": 12, "block_size": 8, "max_model_len": 64}  # requests are preempted
    options = {"speculative_config": NGRAM, "per_request_spec_decode_metrics": level} | few
    with one_process_llm(save_tiny_model(tmp_path), **options) as llm:
        made = llm.generate([PROMPT] * 4, [REPEATING, FREE] * 2, use_tqdm=False)
        total = {each.name: each.value for each in llm.get_metrics() if each.name in NAMES}

    found = [each.outputs[0].spec_decode_metrics for each in made]
    assert total["tetrad:spec_decode_num_accepted_tokens"] > 20
    if level == "none":
        assert found == [None] * 4
        return
    assert sum(each.num_steps for each in found) == total["tetrad:spec_decode_num_drafts"]
    assert sum(each.num_draft_tokens for each in found) == total["tetrad:spec_decode_num_draft_tokens"]
    assert sum(each.num_accepted for each in found) == total["tetrad:spec_decode_num_accepted_tokens"]
    assert found[0].num_accepted > found[1].num_accepted
    for each in found:
        assert each.num_spec_tokens == 3
        assert len(each.per_step_accepted) == (each.num_steps if level == "detailed" else 0)
        assert sum(each.per_step_drafted) == (each.num_draft_tokens if level == "detailed" else 0)
