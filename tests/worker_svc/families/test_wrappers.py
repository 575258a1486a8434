"""Wrappers of text models give the tokens of transformers for prompts of text, from every layout of files."""

import json
from itertools import product

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

from tests.grids import grid
from tests.lora_files import merged, save_lora
from tests.worker_svc.conftest import LAYOUT, Driver
from tests.worker_svc.families.test_parity import PROMPTS, verified
from tests.worker_svc.families.tiny_wrappers import FOREIGN, WRAPPERS, save_wrapper
from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.lora import LoraLimits
from tetrad.worker_svc.families.registry import read_config

SHORT = [prompt for prompt in PROMPTS if len(prompt) < 100]


def check_tokens(load, directory, reference):
    driver = Driver(load(directory).make_runner(LAYOUT))
    for handle, prompt in enumerate(SHORT):
        driver.add(handle, prompt)
    outputs = driver.generate(12, chunk=48)
    for handle, prompt in enumerate(SHORT):
        assert outputs[handle][:12] == verified(reference, prompt, outputs[handle])[:12]


def change_config(directory, change):
    path = directory / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def rename_tensors(directory, *changes):
    """Write the tensors under other names: each change is (prefix, what stands in its place)."""
    renamed = {}
    for name, tensor in load_file(directory / "model.safetensors").items():
        old, new = next(((old, new) for old, new in changes if name.startswith(old)), ("", ""))
        renamed[new + name.removeprefix(old)] = tensor
    save_file(renamed, directory / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("name", [*WRAPPERS, *FOREIGN])
def test_tokens_of_text(name, tmp_path, load):
    reference = save_wrapper(tmp_path, name)

    check_tokens(load, tmp_path, reference)


@pytest.mark.parametrize("name", ["gemma3", "llama4", "qwen3_5_moe"])
def test_adapters_have_the_names_of_transformers_modules(name, tmp_path, load):
    """PEFT writes them as transformers' model has them, whatever the files call its tensors."""
    reference = save_wrapper(tmp_path / "model", name)
    modules = r"(model\.)?(language_model|text_model).*(q_proj|o_proj|in_proj_z|embed_tokens)|lm_head"
    adapter = save_lora(tmp_path / "adapter", reference, modules, rank=4, alpha=64)
    model = load(tmp_path / "model", loras=LoraLimits(max_loras=1, max_lora_rank=8, max_cpu_loras=1))

    model.loras.install(1, model.loras.read(adapter))

    driver = Driver(model.make_runner(LAYOUT))
    driver.add(0, SHORT[2])
    driver.add(1, SHORT[2], lora_id=1)
    outputs = driver.generate(12)
    assert outputs[0] == verified(reference, SHORT[2], outputs[0])
    assert outputs[1] == verified(merged(reference, adapter), SHORT[2], outputs[1])
    assert outputs[1] != outputs[0]


def test_newer_names_of_tensors(tmp_path, load):
    reference = save_wrapper(tmp_path, "gemma3")
    rename_tensors(tmp_path, ("language_model.model.", "model.language_model."), ("vision_tower.", "model.vision_tower."))

    check_tokens(load, tmp_path, reference)


def test_published_experts_of_qwen3_vl_are_transposed(tmp_path, load):
    reference = save_wrapper(tmp_path, "qwen3_vl_moe")
    tensors = load_file(tmp_path / "model.safetensors")
    turned = {name: tensor.transpose(1, 2).contiguous() for name, tensor in tensors.items() if ".experts." in name}
    save_file(tensors | turned, tmp_path / "model.safetensors", {"format": "pt"})

    check_tokens(load, tmp_path, reference)


def test_published_experts_of_qwen3_5_lie_in_one_tensor(tmp_path, load):
    reference = save_wrapper(tmp_path, "qwen3_5_moe")
    tensors = {name: tensor for name, tensor in load_file(tmp_path / "model.safetensors").items() if ".experts." not in name}
    experts = {name: each for name, each in reference.state_dict().items() if ".experts." in name}
    assert {tensor.dim() for tensor in experts.values()} == {3}
    save_file(tensors | experts, tmp_path / "model.safetensors", {"format": "pt"})

    check_tokens(load, tmp_path, reference)


def test_older_files_have_the_text_model_s_values_among_their_own(tmp_path, load):
    reference = save_wrapper(tmp_path, "qwen2_vl")
    change_config(
        tmp_path, lambda config: config | {"model_type": "qwen2_vl"} | without(config.pop("text_config"), "model_type")
    )

    check_tokens(load, tmp_path, reference)


@pytest.mark.parametrize("name", WRAPPERS)
def test_the_output_layer_of_a_config_that_does_not_say_is_that_of_transformers(name, tmp_path):
    save_wrapper(tmp_path, name)
    change_config(tmp_path, said_of_tying)
    config = json.loads((tmp_path / "config.json").read_text())

    theirs = AutoConfig.from_pretrained(tmp_path)

    assert read_config(config).tie_word_embeddings == theirs.tie_word_embeddings


# All that a config may say, with one wrapper; with the others, that it says nothing: the defaults of their classes differ.
@pytest.mark.parametrize(
    ("name", "outside", "inside"),
    grid(
        product(
            ["internvl", "mistral3", "llava", "qwen2_vl", "idefics3"],
            [{}, {"tie_word_embeddings": True}],
            [{}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}],
        ),
        lambda name, outside, inside: name == "llava" or not outside | inside,
    ),
    ids=str,
)
def test_an_output_layer_of_the_files_is_used_whatever_the_config_says(name, outside, inside, tmp_path, load):
    save_wrapper(tmp_path, name, tie_word_embeddings=False)
    change_config(tmp_path, lambda config: said_of_tying(config, outside, inside))

    check_tokens(load, tmp_path, AutoModelForImageTextToText.from_pretrained(tmp_path))


@pytest.mark.parametrize(("name", "inside"), [("internvl", {}), ("mistral3", {}), ("llava", {"tie_word_embeddings": True})])
def test_files_without_an_output_layer_whose_config_does_not_say(name, inside, tmp_path, load):
    save_wrapper(tmp_path, name, tie_word_embeddings=True)
    change_config(tmp_path, lambda config: said_of_tying(config, {}, inside))

    check_tokens(load, tmp_path, AutoModelForImageTextToText.from_pretrained(tmp_path))


def said_of_tying(config, outside=None, inside=None):
    """Return the config with these values alone of whether the output layer is tied, in the whole and in the text config."""
    text_config = without(config["text_config"], "tie_word_embeddings") | (inside or {})
    return without(config, "tie_word_embeddings") | {"text_config": text_config} | (outside or {})


def test_values_that_gemma_3_s_files_leave_out_are_transformers_own(tmp_path, load):
    save_wrapper(tmp_path, "gemma3")
    left_out = ("num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "rms_norm_eps")

    change_config(tmp_path, lambda config: config | {"text_config": without(config["text_config"], *left_out)})

    with pytest.raises(ModelError, match=r"embed_tokens.weight has shape \(320, 64\), but the config asks for \(262208, 64\)"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda config: config | {"text_config": {"model_type": "bamba"}},
            "model_type 'bamba', which is not supported; supported: ",
        ),
        (
            lambda config: config | {"text_config": {"model_type": "ministral3"}},
            "The model's config has no 'num_attention_heads'",
        ),
        (lambda config: config | {"text_config": 5}, "cannot be read"),
        (
            lambda config: config | {"text_config": config["text_config"] | {"alibi": True}},
            "alibi True, which is not supported",
        ),
    ],
)
def test_a_text_config_that_no_family_reads(change, reason, tmp_path, load):
    save_wrapper(tmp_path, "llava")
    change_config(tmp_path, change)

    with pytest.raises(ModelError, match=reason):
        load(tmp_path)


def test_a_text_model_without_a_tensor(tmp_path, load):
    save_wrapper(tmp_path, "llava")
    rename_tensors(tmp_path, ("language_model.model.layers.1.mlp.up_proj", "language_model.model.layers.1.mlp.lost"))

    with pytest.raises(ModelError, match=r"no tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        load(tmp_path)


def without(values, *keys):
    return {key: value for key, value in values.items() if key not in keys}
