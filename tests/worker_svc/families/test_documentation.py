"""docs/models.md agrees with the registry of families, and every family has a tiny model to compare with transformers."""

from pathlib import Path

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from tests.audio_files import AUDIO_KINDS
from tests.worker_svc.families.tiny_models import FAMILIES as TINY_MODELS
from tests.worker_svc.families.tiny_wrappers import WRAPPERS as TINY_WRAPPERS
from tetrad.worker_svc.families.registry import FAMILIES, WRAPPERS
from tools.models_page import page

ROOT = Path(__file__).parents[3]
NOT_IN_TRANSFORMERS = {"ExaoneForCausalLM", "InternLM3ForCausalLM", "MiniCPMForCausalLM", "MPTForCausalLM"}
"""Compared with a model of the same weights; see test_exaone.py, test_own_code.py and test_alibi.py."""


def test_the_page_is_what_the_registry_says():
    assert (ROOT / "docs/models.md").read_text() == page()


def test_every_architecture_is_compared_with_transformers():
    compared = {MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type] for model_type, _ in TINY_MODELS.values()}

    assert compared | NOT_IN_TRANSFORMERS == set(FAMILIES)


def test_every_wrapper_is_compared_with_transformers():
    compared = {MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[model_type] for model_type, *_ in TINY_WRAPPERS.values()}
    compared |= {kind.architecture for kind in AUDIO_KINDS.values()}

    assert compared == set(WRAPPERS)
