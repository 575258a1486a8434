"""Files of weights: loading of models, and errors of unsupported files."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.gguf_file import GgufSource
from tetrad.worker_svc.checkpoint.model_config import read_model_config
from tetrad.worker_svc.checkpoint.open import open_source
from tetrad.worker_svc.families.registry import supported_config
from tetrad.worker_svc.model_facts.config import Rope

PROMPT = list(range(3, 40))


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


def test_sharded_safetensors(tmp_path, load, make_driver, save_tiny_model, assert_greedy):
    reference = save_tiny_model(tmp_path, "LlamaForCausalLM", max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    driver = make_driver(load(tmp_path))
    driver.add(0, PROMPT)

    assert_greedy(reference, PROMPT, driver.generate(5)[0])


def test_the_same_weights_in_mistrals_form_are_not_read(tmp_path, tiny_llama):
    both = shutil.copytree(tiny_llama[0], tmp_path / "both")
    save_file({"layers.0.attention.wq.weight": torch.ones(2, 2)}, both / "consolidated.safetensors")

    source = open_source(both)

    assert not source.has("layers.0.attention.wq.weight")
    assert source.total_bytes == (both / "model.safetensors").stat().st_size


def test_missing_shard(tmp_path, save_tiny_model):
    save_tiny_model(tmp_path, "LlamaForCausalLM", max_shard_size="100KB")
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()

    with pytest.raises(ModelError) as error:
        open_source(tmp_path)

    assert gone.name in one_line(error)


def test_truncated_safetensors(tmp_path, tiny_llama):
    broken = shutil.copytree(tiny_llama[0], tmp_path / "broken")
    data = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(data[: len(data) // 2])

    with pytest.raises(ModelError, match=r"model\.safetensors is not a whole"):
        open_source(broken)


@pytest.mark.parametrize("size", [3, 100, 20_000, 1_700_000, 40_000_000])
def test_truncated_gguf(size, smollm2, tmp_path):
    broken = tmp_path / "broken.gguf"
    with smollm2.open("rb") as whole:
        broken.write_bytes(whole.read(size))

    with pytest.raises(ModelError) as error:
        GgufSource(broken)

    assert "broken.gguf" in one_line(error)


def test_file_that_is_no_gguf(tmp_path):
    path = tmp_path / "text.gguf"
    path.write_text("hello " * 1000)

    with pytest.raises(ModelError, match="not a whole GGUF file"):
        open_source(path)


def test_an_architecture_that_nothing_knows_is_named_with_the_page_that_lists_what_runs():
    with pytest.raises(ModelError) as error:
        supported_config({"architectures": ["FancyForCausalLM"]})

    assert "FancyForCausalLM" in one_line(error)
    assert "docs/models.md" in str(error.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_size": None}, "config"),
        ({"vocab_size": 321}, "model.embed_tokens.weight"),
        ({"num_hidden_layers": 4}, "model.layers.3"),
        ({"hidden_act": "tanh"}, "tanh"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "yarn"),
    ],
)
def test_config_that_does_not_fit_its_files(change, named, tmp_path, tiny_llama, load):
    broken = shutil.copytree(tiny_llama[0], tmp_path / "broken")
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, **change}))

    with pytest.raises(ModelError) as error:
        load(broken)

    assert named in one_line(error)


@pytest.mark.parametrize("options", [{"dtype": "float16"}, {"quantization": "awq"}, {"hf_overrides_json": "[1]"}])
def test_options_that_cannot_be_met(options, tiny_llama, load):
    with pytest.raises(ModelError):
        load(tiny_llama[0], **options)


def test_random_weights_follow_the_seed(tiny_llama, load, make_driver):
    outputs = []
    for seed in (1, 1, 2):
        driver = make_driver(load(tiny_llama[0], random_weights=True, seed=seed))
        driver.add(0, PROMPT)
        outputs.append(driver.generate(8)[0])

    assert outputs[0] == outputs[1] != outputs[2]


def test_it_is_told_what_weights_are_stored_in_and_what_is_computed_in(smollm2, tiny_llama, load):
    from_gguf, from_floats = load(smollm2).info, load(tiny_llama[0]).info

    assert (from_gguf.weights_dtype, from_gguf.dtype) == ("Q4_1", "float32")
    assert (from_floats.weights_dtype, from_floats.dtype) == ("float32", "float32")


def test_overrides_change_the_config(tiny_llama, load):
    model = load(tiny_llama[0], hf_overrides_json='{"max_position_embeddings": 77}')

    assert model.info.max_position_embeddings == 77


def test_progress_ends_at_all_bytes(tiny_llama, cpu):
    from tetrad.worker_svc.core.device import LoadRequest

    seen = []
    model = cpu.load_model(LoadRequest("tiny", tiny_llama[0]), lambda done, total: seen.append((done, total)))

    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == pytest.approx(seen[-1][1], rel=0.05)  # the file has a header besides its tensors
    assert model.info.num_parameters == sum(p.numel() for p in tiny_llama[1].parameters())


def test_gguf_metadata_reads_as_a_config(smollm2):
    config = supported_config(read_model_config(smollm2))

    assert (config.architecture, config.num_layers, config.hidden_size) == ("LlamaForCausalLM", 30, 576)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert config.ropes == (Rope(64, 100_000.0),)
    assert (config.tie_word_embeddings, config.vocab_size) == (True, 49152)


def test_plain_and_packed_linear_agree():
    import torch

    from tetrad.worker_svc.layers.linear import PackedLinear, PlainLinear, can_pack

    assert can_pack()
    weight, bias = torch.randn(96, 64), torch.randn(96)
    for rows in (1, 3, 40, 300):
        x = torch.randn(rows, 64)
        for given in (None, bias):
            plain, packed = PlainLinear(weight, given)(x), PackedLinear(weight, given)(x)
            np.testing.assert_allclose(packed.numpy(), plain.numpy(), atol=1e-4)


def test_fp8_without_its_scales_is_not_taken_for_weights(tmp_path, tiny_llama, load):
    import torch
    from safetensors.torch import load_file, save_file

    directory = shutil.copytree(tiny_llama[0], tmp_path / "fp8")
    tensors = load_file(directory / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, directory / "model.safetensors")

    with pytest.raises(ModelError, match="is of type float8_e4m3fn"):
        load(directory)
