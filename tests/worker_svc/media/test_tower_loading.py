"""Loading of towers: only tensors of the vision model are read; files that lack a part make a model of text, or are refused."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tests.lora_files import save_lora
from tests.pictures import picture
from tests.vision_files import save_vision_model
from tests.vision_reference import VisionReference
from tests.worker_svc.media.image_prompts import image_prompt
from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.directory import DirectorySource
from tetrad.worker_svc.core.device import LoadRequest
from tetrad.worker_svc.core.lora import LoraLimits
from tetrad.worker_svc.core.media import Modality
from tetrad.worker_svc.media.tower_loading import load_tower


def rewrite(directory, change):
    """Change the names and tensors of a model's only file: `change` takes a name and a tensor, and returns both or None."""
    path = directory / "model.safetensors"
    changed = [change(name, tensor) for name, tensor in load_file(path).items()]
    save_file(dict(each for each in changed if each is not None), path, {"format": "pt"})


def renamed(**prefixes):
    def change(name, tensor):
        old, new = next(((old, new) for old, new in prefixes.items() if name.startswith(f"{old}.")), ("", ""))
        return new + name.removeprefix(f"{old}.") if old else name, tensor

    return change


def check(model, reference):
    prompt = image_prompt(reference, [picture(60, 40)])
    expected = reference.embeddings(prompt.prepared).numpy()
    assert np.abs(model.media.tower.encode(prompt.items[0]).rows - expected).max() < 1e-5


def test_the_text_model_is_neither_read_nor_built_for_the_tower(tmp_path, load, monkeypatch):
    model = save_vision_model(tmp_path, "llava")
    names, load_tensor = [], DirectorySource.load
    monkeypatch.setattr(DirectorySource, "load", lambda self, name: names.append(name) or load_tensor(self, name))

    loaded = load(tmp_path)

    tower = loaded.media.tower
    own = [name for name, _ in model.model.named_parameters() if "language_model" not in name]
    assert len([name for name in names if "language_model" not in name]) == len(own)
    text_sizes = [each.numel() for each in tower._module.language_model.parameters()]
    assert sum(text_sizes) <= 2 * loaded.info.hidden_size
    assert loaded.info.num_parameters >= sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize(
    ("kind", "prefixes"),
    [
        ("qwen2_5_vl", {"model.visual": "visual.", "model.language_model": "model."}),
        ("llava", {"vision_tower": "vision_tower.vision_model."}),
        ("llava", {"vision_tower": "model.vision_tower.", "multi_modal_projector": "model.multi_modal_projector."}),
        ("mistral3", {"vision_tower": "model.vision_tower.", "multi_modal_projector": "model.multi_modal_projector."}),
    ],
)
def test_names_of_tensors_in_files_of_other_releases(kind, prefixes, tmp_path, load):
    save_vision_model(tmp_path, kind)
    reference = VisionReference(tmp_path)
    rewrite(tmp_path, renamed(**prefixes))

    check(load(tmp_path), reference)


def test_types_of_weights_and_buffers_in_the_files(tmp_path, load):
    save_vision_model(tmp_path, "llava")
    rewrite(tmp_path, lambda name, tensor: (name, tensor.to(torch.bfloat16)))
    reference = VisionReference(tmp_path)
    path = tmp_path / "model.safetensors"
    ids = {"vision_tower.embeddings.position_ids": torch.arange(5)[None]}
    save_file(load_file(path) | ids, path, {"format": "pt"})

    check(load(tmp_path), reference)


def test_a_quantized_checkpoint_with_a_tower_in_floats_and_in_8_bits(tmp_path, load):
    """Matrices of the text model and one of the tower are in fp8 with one scale; the tower's others are in floats."""
    save_vision_model(tmp_path, "qwen2_5_vl")
    quantized: dict[str, torch.Tensor] = {}

    def rounded(name, tensor):
        if name.endswith(("mlp.up_proj.weight", "visual.blocks.0.attn.qkv.weight")):
            quantized[name] = (tensor * 64).to(torch.float8_e4m3fn)
            tensor = quantized[name].float() / 64
        return name, tensor

    rewrite(tmp_path, rounded)
    reference = VisionReference(tmp_path)
    rewrite(tmp_path, lambda name, tensor: (name, quantized.get(name, tensor)))
    path, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    scales = {f"{name}_scale_inv": torch.full(_blocks(quantized[name]), 1 / 64) for name in quantized}
    save_file(load_file(path) | scales, path, {"format": "pt"})
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": quantization}))

    assert len(quantized) > 1
    check(load(tmp_path), reference)


def test_an_adapter_of_the_tower_is_refused(tmp_path, load):
    base = save_vision_model(tmp_path / "model", "smolvlm")
    limits = LoraLimits(max_loras=1, max_lora_rank=8, max_cpu_loras=1)
    model = load(tmp_path / "model", loras=limits)
    adapter = save_lora(tmp_path / "adapter", base, r"model\.vision_model.*q_proj")

    with pytest.raises(ModelError, match=r"does not have or that cannot be adapted: model\.vision_model\.encoder"):
        model.loras.read(adapter)


def test_random_weights_are_those_of_their_seed(tmp_path, load):
    save_vision_model(tmp_path, "smolvlm")
    prompt = image_prompt(VisionReference(tmp_path), [picture(60, 40)])
    (tmp_path / "model.safetensors").unlink()

    first, same, other = (load(tmp_path, random_weights=True, seed=seed).media.tower for seed in (3, 3, 4))

    rows = [tower.encode(prompt.items[0]).rows for tower in (first, same, other)]
    assert np.array_equal(rows[0], rows[1])
    assert not np.allclose(rows[0], rows[2])


def _blocks(tensor):
    return tuple(-(-size // 128) for size in tensor.shape)


def without_vision(name, tensor):
    return None if "vision" in name or "connector" in name else (name, tensor)


@pytest.mark.parametrize("lost", ["preprocessor_config.json", "vision"])
def test_a_model_whose_files_lack_the_processor_or_the_tower_takes_only_text(lost, tmp_path, load):
    save_vision_model(tmp_path, "smolvlm")
    if lost == "vision":
        rewrite(tmp_path, without_vision)
    else:
        (tmp_path / lost).unlink()
        (tmp_path / "processor_config.json").unlink()

    loaded = load(tmp_path)

    assert loaded.media is None
    assert loaded.info.modalities == ()


def test_a_processor_inside_processor_config(tmp_path, load):
    save_vision_model(tmp_path, "smolvlm")
    reference = VisionReference(tmp_path)
    values = json.loads((tmp_path / "processor_config.json").read_text())
    images = json.loads((tmp_path / "preprocessor_config.json").read_text())
    (tmp_path / "processor_config.json").write_text(json.dumps(values | {"image_processor": images}))
    (tmp_path / "preprocessor_config.json").unlink()

    check(load(tmp_path), reference)


@pytest.mark.parametrize(
    ("kind", "name"), [("qwen2_5_vl", "Qwen2_5_VLImageProcessor"), ("qwen3_vl", "Qwen2VLImageProcessorFast")]
)
def test_names_of_image_processors_in_files_of_other_releases(kind, name, tmp_path, load):
    save_vision_model(tmp_path, kind)
    reference = VisionReference(tmp_path)
    change_processor(tmp_path, image_processor_type=name)

    check(load(tmp_path), reference)


def test_a_model_whose_image_processor_is_broken_takes_only_text(tmp_path, load):
    save_vision_model(tmp_path, "smolvlm")
    change_processor(tmp_path, size="large")

    assert load(tmp_path).media is None


def change_processor(directory, **values):
    path = directory / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda name, tensor: None if "post_layernorm.bias" in name else (name, tensor),
            "no tensor model.vision_model.post_lay",
        ),
        (
            lambda name, tensor: (name, tensor[:, :3].clone() if "connector" in name else tensor),
            r"connector\.\S+ has shape \(64, 3\), but the config asks for \(64, 128\)",
        ),
    ],
)
def test_a_tower_without_a_tensor_or_of_another_shape_is_refused(change, reason, tmp_path, load):
    save_vision_model(tmp_path, "smolvlm")
    rewrite(tmp_path, change)

    with pytest.raises(ModelError, match=reason):
        load(tmp_path)


def test_a_device_that_sees_no_later_tokens_takes_only_text_of_a_model_whose_images_do(tmp_path):
    save_vision_model(tmp_path, "gemma3")
    request = LoadRequest("gemma3", tmp_path)

    without = load_tower(request, torch.float32, torch.device("cpu"), has_own_thread=True)
    tower = load_tower(request, torch.float32, torch.device("cpu"), has_own_thread=True, sees_ahead=True)

    assert without is None
    assert tower.modalities == (Modality("image", 20, is_whole=True),)


def test_a_model_that_pools_takes_only_text(tmp_path, load):
    save_vision_model(tmp_path, "qwen2_5_vl")

    assert load(tmp_path, runner="pooling", convert="embed").media is None


@pytest.mark.parametrize(
    ("kind", "kwargs", "largest"),
    [
        ("qwen3_vl", {"max_pixels": 40 * 32 * 32}, 40),
        ("qwen3_vl", {"size": {"shortest_edge": 1024, "longest_edge": 40 * 32 * 32}}, 40),
        ("internvl", {"max_patches": 9}, 40),
        ("mistral3", {"size": {"longest_edge": 10 * 28}}, 100),
    ],
)
def test_the_operators_settings_of_the_image_processor_allow_larger_images(kind, kwargs, largest, tmp_path):
    save_vision_model(tmp_path, kind)
    request = LoadRequest(kind, tmp_path, processor_kwargs_json=json.dumps(kwargs))

    tower = load_tower(request, torch.float32, torch.device("cpu"), has_own_thread=True)

    assert tower.modalities[0].max_embeds_per_item == largest


def test_towers_that_load_at_the_same_time_leave_transformers_as_it_was(tmp_path):
    """While transformers fills a model, it replaces functions of all its models."""
    save_vision_model(tmp_path, "qwen2_5_vl")
    before = PreTrainedModel.tie_weights, PreTrainedModel.init_weights, torch.nn.init.normal_

    def load(_number):
        return load_tower(LoadRequest("qwen2_5_vl", tmp_path), torch.float32, torch.device("cpu"), has_own_thread=True)

    with ThreadPoolExecutor(4) as threads:
        towers = list(threads.map(load, range(12)))

    assert all(towers)
    assert (PreTrainedModel.tie_weights, PreTrainedModel.init_weights, torch.nn.init.normal_) == before
