"""Loading Whisper: its facts, and the files and options that are refused."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.whisper_files import save_whisper
from tests.worker_svc.checkpoint.packed_weights.whole_models import FORMATS
from tests.worker_svc.conftest import Driver, save_tiny, tiny_config
from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.model_config import read_model_config
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.lora import LoraLimits
from tetrad.worker_svc.core.media import Modality
from tetrad.worker_svc.core.plan import EncoderItem, MediaSpan, SamplingSpec
from tetrad.worker_svc.families.check import check_model, check_ranks
from tetrad.worker_svc.media.memory import media_bytes

LAYOUT = KvLayout(num_blocks=40, block_size=16, max_model_len=448, max_num_seqs=4, max_num_batched_tokens=448)


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whisper")
    return directory, save_whisper(directory, num_seconds=1)


def test_its_facts(whisper, load):
    directory, reference = whisper

    model = load(directory)

    info, config = model.info, reference.config
    assert (info.is_encoder_decoder, info.supports_transcription, info.modalities) == (True, True, (Modality("audio", 50),))
    assert (info.max_position_embeddings, info.vocab_size, info.num_layers) == (448, config.vocab_size, config.decoder_layers)
    assert info.num_parameters == sum(each.numel() for each in reference.parameters())
    assert info.encoded_position_bytes == 2 * config.decoder_layers * config.d_model * 4
    room = media_bytes(model, max_num_batched_tokens=2048, max_num_encoder_tokens=50)
    assert 50 * info.encoded_position_bytes < room < 200_000


def test_random_weights_need_no_files_of_weights(tmp_path, whisper, load):
    (tmp_path / "config.json").write_text((whisper[0] / "config.json").read_text())

    assert load(tmp_path, random_weights=True).info.num_parameters == load(whisper[0]).info.num_parameters


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"runner": "pooling"}, "generates and does not pool"),
        ({"convert": "embed"}, "generates and does not pool"),
        ({"takes_media": False}, "does not run with language_model_only"),
        ({"loras": LoraLimits(1, 8, 1)}, "enable_lora is not supported for models with an encoder and a decoder"),
        ({"quantization": "int8"}, "needs the native kernels"),
    ],
)
def test_options_that_it_does_not_have(whisper, load, options, text):
    with pytest.raises(ModelError, match=text):
        load(whisper[0], **options)


def test_no_model_drafts_for_it(tmp_path, whisper, load):
    save_tiny(tmp_path, tiny_config("LlamaForCausalLM", vocab_size=whisper[1].config.vocab_size))

    with pytest.raises(ModelError, match="a drafter does not read what an encoder reads"):
        load(whisper[0], draft_method="draft_model", draft_path=tmp_path, num_draft_tokens=2)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"model.encoder.conv1.weight": None}, "have no tensor model.encoder.conv1.weight"),
        (
            {"model.decoder.layers.2.encoder_attn.k_proj.weight": None},
            "have no tensor model.decoder.layers.2.encoder_attn.k",
        ),
        (
            {"model.decoder.layers.0.encoder_attn.v_proj.bias": torch.zeros(3)},
            r"has shape \(3,\), but the config",
        ),
        ({"model.decoder.layers.1.encoder_attn.q_proj.bias": None}, "have no tensor model.layers.1.cross_attn.q_proj.bias"),
    ],
)
def test_files_without_a_tensor(tmp_path, whisper, load, changed, text):
    tensors = load_file(whisper[0] / "model.safetensors") | changed
    save_file({name: each for name, each in tensors.items() if each is not None}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((whisper[0] / "config.json").read_text())

    with pytest.raises(ModelError, match=text):
        load(tmp_path)


@pytest.mark.parametrize("device", ["cuda", "sim"])
def test_devices_that_do_not_run_it(whisper, device):
    with pytest.raises(ModelError, match=f"an encoder and a decoder, which the {device} device does not support"):
        check_model(read_model_config(whisper[0]), device)


def test_it_has_one_worker(whisper):
    with pytest.raises(ModelError, match="tensor_parallel_size 2: a model with an encoder and a decoder has one worker; use 1"):
        check_ranks(read_model_config(whisper[0]), 2)


def test_the_config_of_large_models_names_the_encoders_layers_twice(tmp_path, whisper, load):
    config = json.loads((whisper[0] / "config.json").read_text()) | {"num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(whisper[0] / "model.safetensors")

    assert load(tmp_path).info.num_layers == config["decoder_layers"]


@pytest.mark.parametrize("form", ["gptq", "fp8 of blocks"])
def test_a_quantized_checkpoint_is_what_it_is_dequantized(tmp_path, load, form):
    make, add = FORMATS[form]
    checkpoint = make()
    save_whisper(tmp_path, num_seconds=1, d_model=64, encoder_ffn_dim=96, decoder_ffn_dim=96)
    config = json.loads((tmp_path / "config.json").read_text())
    floats = load_file(tmp_path / "model.safetensors")
    stems = [name.removesuffix(".weight") for name in floats if name.endswith(("_proj.weight", "fc1.weight", "fc2.weight"))]
    for stem in stems:
        add(checkpoint, stem, *floats.pop(f"{stem}.weight").shape)
    dequantized = {f"{stem}.weight": torch.from_numpy(np.asarray(checkpoint.weights[stem])).float() for stem in stems}
    for name, tensors, changes in (
        ("quantized", checkpoint.tensors, {"quantization_config": checkpoint.quantization}),
        ("floats", dequantized, {}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config | changes))
        save_file({key: each.contiguous() for key, each in (floats | tensors).items()}, tmp_path / name / "model.safetensors")
    features = np.random.default_rng(0).normal(0, 1, (80, 100)).astype(np.float32)
    heard = EncoderItem("a", "audio", {"input_features": features}, 50)

    found = [generated(load(tmp_path / name, dtype="float32"), heard) for name in ("quantized", "floats")]

    np.testing.assert_allclose(*found, atol=1e-3)


def generated(model, heard):
    """Return the log-probabilities of the tokens that follow some of audio."""
    model.media.encode(0, heard, -1)
    driver = Driver(model.make_runner(LAYOUT), LAYOUT)
    span = MediaSpan(heard.identifier, "audio", 0, 0, None, heard.num_embeds)
    driver.add(0, [5, 6, 7], SamplingSpec(temperature=0.0, num_logprobs=0), media=(span,))
    driver.generate(6)
    return [float(values[0]) for _, values, _ in driver.requests[0].logprobs]
