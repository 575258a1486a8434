"""A draft model and an MTP layer beside models with states on the CUDA device, interpreted."""

import pytest
import torch

from tests.mtp_files import save_qwen_mtp
from tests.worker_svc.conftest import save_tiny, tiny_config
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.runner.test_draft_heads import K, MtpReference
from tests.worker_svc.runner.test_worker_drafts_with_states import SAMPLINGS, drafted, driver_of
from tetrad.services.errors import ModelError

NUM_TOKENS = 9
FEW = [SAMPLINGS[0], SAMPLINGS[1], SAMPLINGS[3]]


def check_tokens(drafting, plain, propose) -> None:
    expected = driver_of(plain, FEW).generate(NUM_TOKENS)
    driver = driver_of(drafting, FEW)

    num_compared = drafted(driver, expected, propose, NUM_TOKENS)

    assert {handle: each.output for handle, each in driver.requests.items()} == expected
    assert num_compared > 5


def test_a_draft_model_proposes_its_tokens_and_changes_none_of_the_models(tmp_path, load_cuda):
    save_family(tmp_path / "target", "lfm2")
    small = save_tiny(tmp_path / "small", tiny_config("LlamaForCausalLM", hidden_size=64, num_attention_heads=4))

    @torch.inference_mode()
    def propose(tokens: list[int]) -> list[int]:
        ids = list(tokens)
        for _ in range(K):
            ids.append(int(small(torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[-K:]

    drafting = load_cuda(tmp_path / "target", draft_method="draft_model", draft_path=tmp_path / "small")
    check_tokens(drafting, load_cuda(tmp_path / "target"), propose)


def test_an_mtp_layer_proposes_its_tokens_and_changes_none_of_the_models(tmp_path, load_cuda):
    reference = MtpReference(*save_qwen_mtp(tmp_path, "qwen3_next"), is_qwen=True)

    check_tokens(load_cuda(tmp_path, draft_method="mtp"), load_cuda(tmp_path), reference.propose)


def test_the_largest_step_is_measured_with_what_layers_keep_for_drafts(tmp_path, load_cuda):
    """Host memory is not counted, but the steps ran."""
    save_qwen_mtp(tmp_path, "qwen3_next")
    model = load_cuda(tmp_path, draft_method="mtp")
    per_draft = model._target.decoder.bytes_per_draft

    assert per_draft > 0
    assert model.worst_case_bytes(8) == 8 * per_draft


def test_a_model_of_states_alone_is_refused_a_draft_model(tmp_path, load_cuda):
    save_family(tmp_path / "target", "mamba2")
    save_tiny(tmp_path / "small", tiny_config("LlamaForCausalLM", hidden_size=64, num_attention_heads=4))

    with pytest.raises(ModelError, match=r"speculative_config.method: all layers of the target have states"):
        load_cuda(tmp_path / "target", draft_method="draft_model", draft_path=tmp_path / "small")
