"""Transformers backend: refuses unsupported models with a reason in one line, and runs a model's own code."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from structlog.testing import capture_logs
from transformers import AutoConfig, AutoModelForCausalLM

from tests.worker_svc.conftest import LAYOUT, Driver
from tests.worker_svc.families.test_parity import verified
from tests.worker_svc.families.tiny_models import SIZES, change_config, save_family
from tests.worker_svc.models.own_code import has_run, save_own_code
from tetrad.services.errors import ModelError
from tetrad.worker_svc.attention.paged_metadata import Sight
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.devices.cpu import CpuDevice
from tetrad.worker_svc.families.registry import supported_config
from tetrad.worker_svc.models.transformers_backend.interface import UnservableError
from tetrad.worker_svc.models.transformers_backend.longrope import fix_longrope
from tetrad.worker_svc.models.transformers_backend.sight import sees, sight_of

LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
LONGROPE |= {"factor": 4.0, "original_max_position_embeddings": 64}


@pytest.fixture
def save(tmp_path):
    """Writes a tiny model of a type, or its config alone; returns the directory."""

    def save_model(model_type, *, has_weights=True, **changes):
        config = AutoConfig.for_model(model_type, **SIZES | changes)
        if has_weights:
            AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
        else:
            from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

            config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]]
            config.save_pretrained(tmp_path)
        return tmp_path

    return save_model


def check_refusal(load, directory, reason, **options):
    with pytest.raises(ModelError, match=reason) as caught:
        load(directory, **options)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("model_type", "changes", "reason"),
    [
        ("gpt_neox_japanese", {}, "does not call attention through transformers' AttentionInterface"),
        ("bert", {}, "its mask is neither causal, a sliding window nor a chunk"),
        ("bert", {"is_decoder": True, "add_cross_attention": True}, "it has cross attention"),
        ("recurrent_gemma", {}, "its layers keep states beside keys and values"),
        ("doge", {}, "it changes the mask of its attention, as alibi does"),
    ],
)  # fmt: skip
def test_models_that_are_more_than_attention_over_keys_are_refused_with_the_reason(model_type, changes, reason, save, load):
    directory = save(model_type, has_weights=False, **changes)

    check_refusal(load, directory, reason, random_weights=True)


@pytest.mark.parametrize("factor", [1, -1])
def test_an_output_layer_that_transformers_does_not_tie_is_logged(factor, save, load):
    directory = save("helium", tie_word_embeddings=True)
    tensors = load_file(directory / "model.safetensors")
    output = factor * tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": output}, directory / "model.safetensors", {"format": "pt"})

    with capture_logs() as lines:
        load(directory)

    assert [line["log_level"] for line in lines if line["event"] == "output_layer.not_tied"] == ["warning"] * (factor == -1)


def test_the_rotation_of_a_token_does_not_depend_on_the_requests_beside_it(save, load):
    """transformers has other factors for passes with positions beyond the original context, here 64."""
    model = load(save("helium", rope_parameters=LONGROPE))
    prompts = [np.random.default_rng(length).integers(3, 320, length).tolist() for length in (20, 90)]
    alone, together = Driver(model.make_runner(LAYOUT)), Driver(model.make_runner(LAYOUT))
    alone.add(0, prompts[0])
    for handle, prompt in enumerate(prompts):
        together.add(handle, prompt)

    assert together.generate(12)[0] == alone.generate(12)[0]


def test_a_rotary_embedding_of_its_own_that_depends_on_contexts_is_refused():
    settings = SimpleNamespace(rope_scaling={"type": "longrope"})

    with pytest.raises(UnservableError, match="of type longrope depends on the longest context of a batch"):
        fix_longrope(torch.nn.Linear(1, 1), settings, longest=8)


def test_a_state_that_only_the_code_knows_of_is_found_by_comparing_logits(tmp_path, load):
    """The code says that each token is computed by itself, but adds a part of the one before."""
    save_family(tmp_path, "helium")
    code = """
import torch
from transformers import HeliumConfig, HeliumForCausalLM

class ShiftedConfig(HeliumConfig):
    model_type = "shifted"

class ShiftedForCausalLM(HeliumForCausalLM):
    config_class = ShiftedConfig

    def __init__(self, config):
        super().__init__(config)
        self.model.layers[0].mlp.register_forward_hook(lambda _, __, x: x + torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])
"""
    (tmp_path / "shifted.py").write_text(code)
    own = {"AutoConfig": "shifted.ShiftedConfig", "AutoModelForCausalLM": "shifted.ShiftedForCausalLM"}
    change_config(tmp_path, model_type="shifted", architectures=["ShiftedForCausalLM"], auto_map=own)
    device = CpuDevice(WorkerSettings(threads=1, trust_remote_code=True))

    with pytest.raises(ModelError, match="its logits over KV pages differ from those of its own attention"):
        device.load_model(LoadRequest("shifted", tmp_path), lambda *_: None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "takes weights in floats alone"),
        ({"vocab_size": 321}, r"Tensor lm_head.weight has shape \(320, 64\), but the config asks for \(321, 64\)"),
        ({"num_hidden_layers": 4}, "no tensor model.layers.3.input_layernorm.weight, .* and 6 more"),
        ({"num_hidden_layers": 2}, "tensors that HeliumForCausalLM does not use: model.layers.2.input_layernorm.weight"),
        ({"hidden_act": "no such thing"}, "transformers cannot make HeliumForCausalLM: "),
        ({"hidden_size": "wide"}, "transformers cannot make HeliumForCausalLM: "),
        ({"architectures": ["FancyForCausalLM"]}, "no family, no plug-in and no causal model of transformers has this name"),
    ],
)
def test_files_that_lie_are_refused_in_one_line(changes, reason, tmp_path, load):
    save_family(tmp_path, "helium")
    change_config(tmp_path, **changes)

    check_refusal(load, tmp_path, reason)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"quantization": "int8"}, "Quantization 'int8' needs the native kernels"),
        ({"dtype": "bfloat16"}, "dtype bfloat16"),
    ],
)
def test_options_that_the_backend_does_not_have_are_refused(options, reason, tmp_path, load):
    save_family(tmp_path, "helium")

    check_refusal(load, tmp_path, reason, **options)


def test_a_use_that_needs_a_description_says_that_there_is_none():
    with pytest.raises(ModelError, match="HeliumForCausalLM has no family: transformers' code runs it"):
        supported_config({"architectures": ["HeliumForCausalLM"], "model_type": "helium"})


def test_random_weights_are_those_of_the_seed(save, load):
    directory = save("helium", has_weights=False)

    outputs = []
    for seed in (1, 1, 2):
        driver = Driver(load(directory, random_weights=True, seed=seed).make_runner(LAYOUT))
        driver.add(0, range(5, 25))
        outputs.append(driver.generate(8)[0])

    assert outputs[0] == outputs[1] != outputs[2]


def test_own_code_runs_only_where_it_is_trusted(tmp_path, load):
    save_own_code(tmp_path)

    check_refusal(load, tmp_path, "code that the model brings .* only in a worker with --trust-remote-code")

    assert not has_run(tmp_path)


def test_trusted_code_gives_its_own_tokens(tmp_path):
    reference = save_own_code(tmp_path)
    device = CpuDevice(WorkerSettings(threads=1, trust_remote_code=True))
    prompt = list(range(3, 60))

    driver = Driver(device.load_model(LoadRequest("doubled", tmp_path), lambda *_: None).make_runner(LAYOUT))
    driver.add(0, prompt)
    [output] = driver.generate(16, chunk=20).values()

    assert output == verified(reference, prompt, output)
    assert has_run(tmp_path)


@pytest.mark.parametrize("sight", [Sight(None), Sight(24), Sight(1), Sight(None, 24), Sight(4096)])
def test_the_sight_of_a_mask_function_is_found(sight):
    size = sight.window or sight.chunk

    assert sight_of(lambda _, __, query, key: sees(sight, int(query), int(key)), size) == sight


@pytest.mark.parametrize(
    "function",
    [
        lambda *_: torch.tensor(True),
        lambda _, __, query, key: key < query,
        lambda _, __, query, key: (key <= query) & (key > query - 23),
        lambda _, __, query, key: torch.ones(9)[key] > 0,
    ],
)
def test_other_mask_functions_are_refused(function):
    with pytest.raises(UnservableError, match="mask"):
        sight_of(function, 24)
