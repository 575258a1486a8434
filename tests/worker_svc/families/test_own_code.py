"""Families whose code is in their checkpoints alone: tokens are those of a model of transformers that computes the same.

A tiny model of transformers is written with the other family's config: MiniCPM computes as Granite, InternLM3 as Llama.
"""

import json

import numpy as np
import pytest

from tests.worker_svc.conftest import LAYOUT, Driver
from tests.worker_svc.families.test_parity import verified
from tests.worker_svc.families.tiny_models import save_family
from tetrad.services.errors import ModelError

PROMPTS = [np.random.default_rng(length).integers(3, 320, length).tolist() for length in (1, 17, 90)]
MINICPM = {"scale_emb": 6, "scale_depth": 1.4, "dim_model_base": 16}
LIKE_MINICPM = {
    "embedding_multiplier": 6.0,
    "residual_multiplier": 1.4 / 3**0.5,
    "logits_scaling": 64 / 16,
    "attention_multiplier": 0.25,
}


def write_config(directory, architecture, *without, **own):
    """Change the architecture and the values of config.json; `without` are keys of the other model."""
    path = directory / "config.json"
    values = json.loads(path.read_text())
    kept = {key: value for key, value in values.items() if key not in (*without, "model_type", "rope_parameters")}
    path.write_text(json.dumps(kept | {"architectures": [architecture], "rope_theta": 1e4, **own}))


def check_tokens(load, directory, reference):
    driver = Driver(load(directory).make_runner(LAYOUT))
    for handle, prompt in enumerate(PROMPTS):
        driver.add(handle, prompt)

    outputs = driver.generate(16)

    assert outputs == {handle: verified(reference, prompt, outputs[handle]) for handle, prompt in enumerate(PROMPTS)}


def test_a_minicpm_is_a_granite(tmp_path, load):
    reference = save_family(tmp_path, "granite", **LIKE_MINICPM)
    write_config(tmp_path, "MiniCPMForCausalLM", *LIKE_MINICPM, **MINICPM)

    check_tokens(load, tmp_path, reference)


def test_a_minicpm_with_sparse_attention_is_refused(tmp_path, load):
    save_family(tmp_path, "granite", **LIKE_MINICPM)
    write_config(tmp_path, "MiniCPMForCausalLM", *LIKE_MINICPM, **MINICPM, sparse_config={"topk": 64})

    with pytest.raises(ModelError, match="has sparse_config, which is not supported"):
        load(tmp_path)


@pytest.mark.parametrize("has_biases", [False, True])
def test_an_internlm3_is_a_llama(has_biases, tmp_path, load):
    """Its context is scaled dynamically, which has no effect on contexts that are served."""
    reference = save_family(tmp_path, "llama", attention_bias=has_biases, mlp_bias=has_biases)
    scaling = {"rope_type": "dynamic", "factor": 6.0}
    keys = {"qkv_bias": has_biases, "bias": has_biases, "rope_scaling": scaling}
    write_config(tmp_path, "InternLM3ForCausalLM", "attention_bias", "mlp_bias", **keys)

    check_tokens(load, tmp_path, reference)
