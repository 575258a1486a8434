"""Quantized models on the CUDA device, interpreted, equal the same weights in floats; experts compute only their tokens."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.worker_svc.checkpoint.packed_weights.published_gpt_oss import save_published
from tests.worker_svc.checkpoint.packed_weights.test_families import FORMS
from tests.worker_svc.checkpoint.packed_weights.test_families import write_model as write_family
from tests.worker_svc.checkpoint.packed_weights.test_stacked_experts import write_model as write_experts
from tests.worker_svc.checkpoint.packed_weights.whole_models import FORMATS, write_model
from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import SMALL
from tests.worker_svc.families.test_parity import verified
from tests.worker_svc.native.test_gguf import logprobs
from tetrad.services.errors import ModelError
from tetrad.worker_svc.cuda import experts, linears


def make_driver(model) -> Driver:
    return Driver(model.make_runner(SMALL), SMALL)


@pytest.fixture
def grouped_alone(monkeypatch):
    """Fails if experts compute tokens that did not choose them."""

    def fail(*_: object) -> None:
        pytest.fail("the experts of a layer are not stacked")

    monkeypatch.setattr(experts, "AllExperts", fail)


@pytest.mark.parametrize("form", ["int4 with zeros", "nvfp4"])
def test_a_format_multiplies_as_the_same_weights_in_floats(form, tmp_path, load_cuda):
    new, add = FORMATS[form]
    quantized, floats = (load_cuda(path) for path in write_model(tmp_path, new(), add))

    np.testing.assert_allclose(logprobs(quantized, make_driver), logprobs(floats, make_driver), atol=2e-3)
    assert quantized.info.num_parameters == floats.info.num_parameters
    assert quantized.info.weights_size_bytes < 0.5 * floats.info.weights_size_bytes


def test_gpt_oss_as_published_generates_the_tokens_of_transformers(tmp_path, load_cuda, grouped_alone):
    reference = save_published(tmp_path)
    prompts = [[5, 9, 200], list(range(40, 62))]

    model = load_cuda(tmp_path)
    driver = make_driver(model)
    for handle, prompt in enumerate(prompts):
        driver.add(handle, prompt)
    outputs = driver.generate(6)

    assert outputs == {handle: verified(reference, prompt, outputs[handle]) for handle, prompt in enumerate(prompts)}


@pytest.mark.parametrize(("family", "form"), [("granite_moe", "int4 with zeros"), ("llama4", "gptq"), ("gpt_oss", "int8")])
def test_quantized_experts_compute_their_own_tokens(family, form, tmp_path, load_cuda, grouped_alone):
    quantized, floats = (load_cuda(path) for path in write_experts(tmp_path, family, form))

    np.testing.assert_allclose(logprobs(quantized, make_driver), logprobs(floats, make_driver), atol=2e-3)


@pytest.mark.parametrize(("family", "form"), [("phi3", "awq"), ("cohere", "gptq"), ("gpt2", "gptq")])
def test_matrices_that_a_family_cuts_or_reorders_multiply_as_in_floats(family, form, tmp_path, load_cuda):
    """A word of AWQ or GPTQ has values of several rows."""
    new, add = FORMS[form]
    quantized, floats = (load_cuda(path) for path in write_family(tmp_path, family, new(), add))

    np.testing.assert_allclose(logprobs(quantized, make_driver), logprobs(floats, make_driver), atol=2e-3)


@pytest.mark.parametrize("form", ["fp8 of blocks", "modelopt fp8"])
def test_scales_of_several_rows_of_a_matrix_that_is_cut_are_read(form, tmp_path, load_cuda):
    new, add = FORMATS[form]
    quantized, floats = (load_cuda(path) for path in write_family(tmp_path, "phi3", new(), add))

    expected = logprobs(floats, make_driver)

    # Activations are quantized, too; see exact_activations.
    assert np.abs(logprobs(quantized, make_driver) - expected).mean() < 0.1 * expected.std()


@pytest.mark.parametrize("form", ["gptq", "fp8 of blocks"])
def test_matrices_that_expand_latents_become_floats(form, tmp_path, load_cuda, monkeypatch):
    made = linears.product_context
    monkeypatch.setattr(linears, "product_context", lambda *a: replace(made(*a), has_fp8=False))  # activations stay floats
    new, add = FORMATS[form]
    quantized, floats = (load_cuda(path) for path in write_family(tmp_path, "deepseek_v3", new(), add))

    np.testing.assert_allclose(logprobs(quantized, make_driver), logprobs(floats, make_driver), atol=2e-3)


def test_transforms_of_activations_are_refused(tmp_path, load_cuda):
    checkpoint, add = FORMATS["fp8 of rows"]
    path, _ = write_model(tmp_path, checkpoint(), add)
    config = json.loads((path / "config.json").read_text())
    scheme = {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "input"}]}
    config["quantization_config"]["transform_config"] = {"config_groups": {"R4": scheme}}
    (path / "config.json").write_text(json.dumps(config))

    with pytest.raises(ModelError, match="transform_config 'R4' changes 'input', which is not supported"):
        load_cuda(path)
