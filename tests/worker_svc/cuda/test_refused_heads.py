"""Draft heads that the CUDA device refuses, with the reason."""

import json

import pytest

from tests.eagle3_files import save_eagle3
from tests.mtp_files import save_mtp
from tests.worker_svc.conftest import save_tiny, tiny_config
from tests.worker_svc.cuda.draft_heads import LAYERS, SIZES, save_target
from tetrad.services.errors import ModelError


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """Return the directory of a model for EAGLE-3 heads."""
    directory = tmp_path_factory.mktemp("target")
    save_target(directory)
    return directory


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "of architecture LlamaForCausalLM; an EAGLE-3 head is one of"),
        ({"quantization_config": {"quant_method": "fp8"}}, "EAGLE-3 head is quantized as 'fp8', which is not supported"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 9]}, r"layers \[1, 9\]; the target has layers 0 to 2"),
        ({"vocab_size": 400}, "The target has 320 tokens, the draft model 400"),
        ({"draft_vocab_size": 100}, "d2t has shape"),
    ],
)
def test_an_eagle3_head_that_does_not_fit_is_refused(changes, problem, target, load_cuda, tmp_path):
    with pytest.raises(ModelError, match=problem):
        head = save_eagle3(tmp_path, **{"eagle_aux_hidden_state_layer_ids": [0, 1, 2], **changes})
        load_cuda(target, draft_method="eagle3", draft_path=head)


def test_a_model_without_an_mtp_layer_is_refused(target, load_cuda):
    with pytest.raises(ModelError, match="has no layer that predicts further tokens"):
        load_cuda(target, draft_method="mtp")


def test_random_weights_have_no_mtp_layer(tmp_path, load_cuda):
    save_mtp(tmp_path, "glm")

    with pytest.raises(ModelError, match="random weights have no such layer"):
        load_cuda(tmp_path, draft_method="mtp", random_weights=True)


def test_a_target_with_windows_is_refused(tmp_path, load_cuda):
    config = tiny_config("MistralForCausalLM", **SIZES, num_hidden_layers=LAYERS, sliding_window=16)
    save_tiny(tmp_path, config)

    with pytest.raises(ModelError, match="all layers of the target must see all tokens"):
        head = save_eagle3(tmp_path / "head", eagle_aux_hidden_state_layer_ids=[0, 1, 2])
        load_cuda(tmp_path, draft_method="eagle3", draft_path=head)


def test_a_model_that_transformers_code_runs_is_refused(tmp_path, load_cuda):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["ElsewhereForCausalLM"], "model_type": "elsewhere"}))

    with pytest.raises(ModelError, match="ElsewhereForCausalLM provides no hidden states"):
        load_cuda(tmp_path, draft_method="eagle3", draft_path=save_eagle3(tmp_path / "head"))


def test_an_encoder_is_refused(tmp_path, load_cuda):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertModel"], "model_type": "bert"}))

    with pytest.raises(ModelError, match="BertModel provides no hidden states"):
        load_cuda(tmp_path, draft_method="eagle3", draft_path=save_eagle3(tmp_path / "head"))
